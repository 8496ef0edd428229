"""A phone is not called any more: at once, for all campaigns of the organization."""

from __future__ import annotations

from django.db import transaction

from dispatch.core import events
from dispatch.core.events import Actor
from dispatch.leads.models import DoNotCall
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, OptOut
from dispatch.telephony.services import opting

BY_THE_PERSON = (DoNotCall.Source.KEY, DoNotCall.Source.TEXT)


def refuse(organization_id: int, phone: str, *, source: str, actor: Actor, note: str = "", but: int = 0) -> bool:
    """Puts the phone (E.164) on the organization's list; False when it was there. From its commit on no gate lets
    it pass, and a lead's call to it that nobody has answered yet is hung up (not the call `but`, in which it was
    asked for). When the person themselves asked for it (`source` key or text), they get no texts either."""
    with transaction.atomic():
        row, is_new = DoNotCall.objects.get_or_create(
            organization_id=organization_id, phone=phone, defaults={"source": source, "note": note[:200]}
        )
        if is_new:
            events.append(organization_id, "do_not_call.added", row.pk, actor=actor, source=source)
            if source in BY_THE_PERSON:
                opting.opt_out(organization_id, phone, source=OptOut.Source.HAND, actor=actor)
        under_way = Call.objects.filter(
            organization_id=organization_id, to_phone=phone, purpose="lead", ended_at=None, answered_at=None
        )
        for call_id in under_way.exclude(pk=but).values_list("pk", flat=True):
            telephony.hang_up(call_id, actor=actor, reason="the person asked not to be called")
    return is_new


def allow(row: DoNotCall, *, actor: Actor) -> None:
    """Takes a phone off the organization's list; leads that ended because of it stay ended."""
    with transaction.atomic():
        events.append(row.organization_id, "do_not_call.removed", row.pk, actor=actor, source=row.source)
        if row.source in BY_THE_PERSON:
            opting.opt_in(row.organization_id, str(row.phone), actor=actor)
        row.delete()
