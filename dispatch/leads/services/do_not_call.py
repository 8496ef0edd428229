"""Maintain the do-not-call lists. Changes apply immediately, to all campaigns of the organization."""

from __future__ import annotations

from django.db import transaction

from dispatch.core import events
from dispatch.core.db.prepared import fetch_all
from dispatch.core.events import Actor
from dispatch.core.privacy import replay
from dispatch.leads import eligibility_sql
from dispatch.leads.models import DoNotCall
from dispatch.leads.services import consents
from dispatch.telephony.models import OptOut
from dispatch.telephony.services import sms

BY_THE_PERSON = (DoNotCall.Source.KEY, DoNotCall.Source.TEXT)


def add_to_list(
    organization_id: int, phone: str, *, source: str, actor: Actor, note: str = "", but: int = 0
) -> bool:
    """Add the phone (E.164) to the organization's list. Return False if it was already listed.

    From the commit on, the phone is not eligible. Unanswered calls of leads to it are hung up, except the call
    `but`, in which the person asked for it. Its consents are withdrawn. If the person asked for it (`source` key
    or text), they get no texts either.
    """
    with transaction.atomic():
        sms.lock_phone([organization_id], phone)
        row, is_new = DoNotCall.objects.get_or_create(
            organization_id=organization_id, phone=phone, defaults={"source": source, "note": note[:200]}
        )
        if is_new:
            events.append(organization_id, "do_not_call.added", row.pk, actor=actor, source=source)
            replay.record(organization_id, replay.DO_NOT_CALL, phone)
        if source in BY_THE_PERSON:
            gets_texts = sms.opt_out(organization_id, phone, source=OptOut.Source.HAND, actor=actor, but=but)
            if gets_texts and row.source not in BY_THE_PERSON:  # so that its removal ends this opt-out, too
                events.append(organization_id, "do_not_call.changed", row.pk, actor=actor, source=source)
                row.source = source
                row.save(update_fields=["source"])
        consents.withdraw(organization_id, phone, by=source, actor=actor, but=but)
        sms.hang_up_unanswered([organization_id], phone, actor=actor, but=but)
    return is_new


def hang_up_everywhere(phone: str, *, actor: Actor) -> None:
    """Hang up every organization's unanswered calls of leads to a phone on the global list.

    Call it after the commit of the entry: a claim that did not see the entry holds its lock until its call is
    visible.
    """
    with transaction.atomic():
        organizations = [pk for (pk,) in fetch_all(eligibility_sql.ORGANIZATIONS_OF_PHONE, {"phone": phone})]
        sms.lock_phone(organizations, phone)
        sms.hang_up_unanswered(organizations, phone, actor=actor)


def remove_from_list(row: DoNotCall, *, actor: Actor) -> None:
    """Remove a phone from the organization's list. Leads that ended because of it stay ended.

    The opt-out of texts that came with the entry ends too, unless the person also replied STOP. An older opt-out
    stays.
    """
    with transaction.atomic():
        events.append(row.organization_id, "do_not_call.removed", row.pk, actor=actor, source=row.source)
        replay.record(row.organization_id, replay.CALL_AGAIN, str(row.phone))
        if row.source in BY_THE_PERSON:
            sms.opt_in(
                row.organization_id, str(row.phone), actor=actor, source=OptOut.Source.HAND, since=row.created_at
            )
        row.delete()
