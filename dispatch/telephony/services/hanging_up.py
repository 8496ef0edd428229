"""Ending a call, at whatever stage it is."""

from __future__ import annotations

from functools import partial

import structlog
from django.db import transaction

from dispatch.core import clock, faults
from dispatch.core.events import SYSTEM, Actor
from dispatch.telephony import providers
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallGone, ProviderTrouble
from dispatch.telephony.services.moving import advance, keep, locked, record, tell
from dispatch.telephony.services.progress import apply_report

log = structlog.get_logger(__name__)


def hang_up(call_id: int, *, actor: Actor = SYSTEM, reason: str = "") -> Call:
    """Ends the call; one that has ended is left alone. In or outside of a transaction.

    Nobody asked for it yet: it ends now. The provider took it: it is told after the commit, and again by the
    reconciler until it is over. In between: as soon as its outcome is known, or its first webhook arrives.
    Raises Call.DoesNotExist."""
    with transaction.atomic():
        call = locked(call_id)
        if call.ended_at is not None:
            return call
        if call.cancel_requested_at is None:
            keep(call, cancel_requested_at=clock.now())
            record(call, "cancel_requested", actor, reason=reason)
        if call.status == Call.Status.CREATED:
            advance(call, Call.Status.CANCELED, actor=actor)
            transaction.on_commit(partial(tell, call), robust=True)
        elif call.sid is not None:
            end_after_commit(call)
    return call


def end_after_commit(call: Call) -> None:
    """Has the provider end the call when the transaction has committed."""
    transaction.on_commit(partial(end_at_provider, call.pk), robust=True)


def end_at_provider(call_id: int) -> None:
    """Asks the provider to end a call that has a SID, and writes what it says: ending a queued call brings no
    callback. What fails is asked again by the reconciler. Outside of any transaction."""
    call = Call.objects.select_related("account").get(pk=call_id)
    if call.sid is None:
        return
    faults.point("telephony.hang_up.asking")
    Call.objects.filter(pk=call_id).update(checked_at=clock.now())
    try:
        report = providers.for_account(call.account).hang_up(call.sid)
    except CallGone:
        lose(call_id, "the provider does not know it")
        return
    except (ProviderTrouble, providers.UnknownProvider) as error:
        log.warning("the provider did not take the hang-up", call=call_id, error=str(error))
        return
    faults.point("telephony.hang_up.sent")
    apply_report(call_id, report)


def lose(call_id: int, why: str) -> None:
    """Ends a call whose end nobody will report."""
    with transaction.atomic():
        call = locked(call_id)
        changed = advance(call, Call.Status.LOST, error_message=why)
    if changed:
        tell(call)
