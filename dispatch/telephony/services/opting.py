"""Who wants no texts of an organization: by STOP, by the provider's word, by hand; and who wants them again."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q

from dispatch.core import events
from dispatch.core.events import SYSTEM, Actor
from dispatch.telephony.models import OptOut
from dispatch.telephony.services.texting import cancel_texts


def opt_out(
    organization_id: int, phone: Any, *, source: OptOut.Source = OptOut.Source.HAND, actor: Actor = SYSTEM
) -> bool:
    """No more texts to that phone, those that wait included; False when it was so already. Calls are not
    touched."""
    with transaction.atomic():
        row, is_new = OptOut.objects.get_or_create(
            organization_id=organization_id, phone=str(phone), defaults={"source": source}
        )
        if is_new:
            events.append(organization_id, "optout.added", row.pk, actor=actor, source=str(source))
            cancel_texts(Q(organization_id=organization_id, to_phone=str(phone)), actor=actor)
    return is_new


def opt_in(organization_id: int, phone: Any, *, actor: Actor = SYSTEM) -> bool:
    """Texts to that phone are welcome again; False when they were."""
    with transaction.atomic():
        row = OptOut.objects.select_for_update().filter(organization_id=organization_id, phone=str(phone)).first()
        if row is None:
            return False
        events.append(organization_id, "optout.removed", row.pk, actor=actor)
        row.delete()
    return True
