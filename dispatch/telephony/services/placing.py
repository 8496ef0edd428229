"""Asking the provider for a call: at most one possibly processed request for each row."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.capacity import rates
from dispatch.core import clock, faults, statements
from dispatch.telephony import addresses, providers
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import Order, Outcome, Provider, RateLimited, Rejected, Submitted, Unknown
from dispatch.telephony.services.hanging_up import end_after_commit
from dispatch.telephony.services.moving import PROVIDER, advance, hold_back, keep, locked, record, tell

log = structlog.get_logger(__name__)

PAUSED_RETRY = timedelta(seconds=1)
Status = Call.Status


def place(call_id: int) -> Call:
    """Asks the provider for a created call whose time has come, and writes what came of it; the call as it is
    then.

    Outside of any transaction. Anything else than a created, due call is left as it is, so anybody may call
    this at any time, twice too. Raises Call.DoesNotExist."""
    call, changed = claim(call_id)
    if changed and call.status == Status.REQUESTING:
        return ask(call)
    return call


def claim(call_id: int) -> tuple[Call, bool]:
    """The first half of `place`: takes a turn at the provider's and the pool's rate, so that calls claimed
    one after another are served in that order. The call, and whether its status moved; when it is `requesting`
    then, whoever claimed it must `ask`, before `send_by`. Raises Call.DoesNotExist."""
    call, changed = _claim(call_id)
    if changed and call.status != Status.REQUESTING:
        tell(call)
    return call, changed


def ask(call: Call) -> Call:
    """The second half, for the one who claimed it: asks the provider and writes what came of it."""
    faults.point("telephony.place.claimed")
    outcome = _ask(call)
    faults.point("telephony.place.sent")
    call = write(call.pk, outcome)
    faults.point("telephony.place.written")
    tell(call)
    return call


def _claim(call_id: int) -> tuple[Call, bool]:
    """created → requesting, when nothing speaks against it. The call, and whether its status moved."""
    with transaction.atomic():
        call = locked(call_id, "account", "number", "pool")
        if call.status != Status.CREATED:
            return call, False
        now = clock.now()
        if call.cancel_requested_at is not None:
            return call, advance(call, Status.CANCELED)
        if now >= call.place_by:
            return call, advance(call, Status.NOT_PLACED, error_message="its time had passed")
        if now < call.not_before:
            return call, False
        if call.pool.is_paused or call.number.is_paused or not call.account.is_active:
            hold_back(call, now + PAUSED_RETRY)
            return call, False
        wait_s = rates.take(call.account, call.pool)
        if wait_s > 0:
            hold_back(call, now + timedelta(seconds=wait_s))
            return call, False
        send_by = min(now + timedelta(seconds=settings.CALL_SEND_WINDOW_S), call.place_by)
        return call, advance(call, Status.REQUESTING, requested_at=now, send_by=send_by)


def _ask(call: Call) -> Outcome:
    try:
        provider: Provider = providers.for_account(call.account)
    except Exception as error:
        log.exception("the account's provider cannot be used", account=call.account_id)
        return Rejected(False, "", str(error)[:255], "configuration")
    assert call.send_by is not None
    left_s = (call.send_by - clock.now()).total_seconds()
    if left_s <= 0:
        # it was claimed, and this process slept; nothing was sent, so another may claim it
        return RateLimited(0.0, "the claim had lapsed before it was sent")
    return provider.place(
        Order(
            to=str(call.to_phone),
            from_=str(call.from_phone),
            voice_url=addresses.webhook(call, "voice"),
            status_url=addresses.webhook(call, "status"),
            ring_timeout_s=call.ring_timeout_s,
            time_limit_s=call.time_limit_s,
            leave_within_s=left_s,
            detect_machine=call.detect_machine,
        )
    )


def write(call_id: int, outcome: Outcome) -> Call:
    """Writes the outcome; a webhook or a reconciler may have been faster, and then knows better. If it were lost,
    they would find it out."""
    with transaction.atomic():
        statements.flush_later()
        call = locked(call_id)
        if isinstance(outcome, Submitted):
            _submitted(call, outcome)
        elif isinstance(outcome, RateLimited):
            _sent_back(call, outcome)
        elif isinstance(outcome, Rejected) and call.sid is None:
            advance(
                call,
                Status.REJECTED,
                actor=PROVIDER,
                data={"about": outcome.kind, "permanent": outcome.permanent},
                error_code=outcome.code,
                error_message=outcome.message,
            )
        elif isinstance(outcome, Unknown) and call.sid is None:
            advance(call, Status.UNKNOWN, data={"why": outcome.reason})
    return call


def _submitted(call: Call, outcome: Submitted) -> None:
    if call.sid not in (None, outcome.sid):
        log.error("the provider made another call than was found", call=call.pk)
        return
    call.sid = outcome.sid
    if not advance(call, outcome.status, actor=PROVIDER, sid=outcome.sid):
        keep(call, sid=outcome.sid)
    if call.ended_at is None and call.cancel_requested_at is None:
        return
    if call.ended_at is not None and call.status not in (Status.NOT_PLACED, Status.LOST):
        return
    end_after_commit(call)


def _sent_back(call: Call, outcome: RateLimited) -> None:
    if call.status != Status.REQUESTING or call.sid is not None:
        return
    if call.cancel_requested_at is not None:
        advance(call, Status.CANCELED)
        return
    again = clock.now() + timedelta(seconds=outcome.retry_after_s)
    keep(call, status=Status.CREATED, not_before=again, send_by=None)
    record(call, "held_back", PROVIDER, retry_in_s=outcome.retry_after_s, why=outcome.reason)
