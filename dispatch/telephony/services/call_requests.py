"""Request calls from the provider: at most one possibly processed request per row."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.capacity import account_outages, rate_limits
from dispatch.core import clock, fault_injection
from dispatch.core.db import lock_waits, prepared
from dispatch.core.db.errors import is_database_away, is_lock_timeout
from dispatch.core.db.lock_waits import limit_lock_waits, limited_transaction
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.runtime import reachability
from dispatch.core.runtime.fair_threads import Slot
from dispatch.core.runtime.queues import enqueue
from dispatch.telephony import handlers, price_sql, providers, sql, webhook_urls
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import (
    CallGone,
    CallRequest,
    Outcome,
    Provider,
    ProviderError,
    RateLimited,
    Rejected,
    Submitted,
    Unknown,
)
from dispatch.telephony.request_threads import CALLS, HANG_UPS
from dispatch.telephony.services import spend_caps
from dispatch.telephony.services.calls import (
    PROVIDER,
    append_call_event,
    defer_call,
    find_locked_call,
    lock_call,
    notify_handler,
    schedule_hang_up,
    transition,
    update_fields,
)
from dispatch.telephony.services.spend_caps import CapState

log = structlog.get_logger(__name__)

# Requests of providers whose client blocks. Its threads start when they are needed, and use no database.
_blocking_requests = ThreadPoolExecutor(64, thread_name_prefix="place")

PAUSED_RETRY = timedelta(seconds=1)
# How long a new call waits for a slot before it is left to the placer (seconds).
SLOT_WAIT_S = 0.25
PLACER = "placer"  # the loop that requests calls
REPEAT_PROMPT = "dispatch.telephony.services.call_requests.request_prompt"
Status = Call.Status


class AnsweredCall(NamedTuple):
    """A call whose request has ended, and the outcome."""

    call_id: int
    account_id: int
    purpose: str
    subject_id: int
    outcome: Outcome


def place_soon(call: Call) -> None:
    """Request a due, created call, if its account has a free slot soon. Otherwise the placer does.

    It also does if only another host reaches the provider. Call it outside any transaction. The caller does not
    wait for the response, nor for an account that hangs.
    """
    if reachability.process.is_relieved(PLACER):
        return
    slot = CALLS.reserve(call.account_id, call.pk, wait_s=SLOT_WAIT_S)
    if slot is None:
        return
    with slot:
        claimed, changed = claim_for_placing(call.pk, known=call)
        if changed and claimed.status == Status.REQUESTING:
            start_request(slot, claimed)


def claim_for_placing(call_id: int, *, known: Call | None = None) -> tuple[Call, bool]:
    """Claim a call for its request. `start_request` follows.

    Takes a token of the provider's and the pool's rate limit, so that calls are served in the order of their
    claims. Return the call and whether its status moved. If it is `requesting` then, the claimer must request it
    before `send_by`. Raises Call.DoesNotExist.

    `known`: the call as it was created, if the placer did not choose it. It is left to the placer if a more urgent
    one waits for the rate.
    """
    call, changed = _claim(call_id, known)
    if changed and call.status != Status.REQUESTING:
        notify_handler(call)
    return call, changed


def start_request(slot: Slot, call: Call) -> None:
    """Request a claimed call from the provider in the process's event loop; a thread writes the outcome."""
    fault_injection.crash_point("telephony.place.claimed")
    CALLS.start_request(slot, _prepare(call), record_outcomes)


def record_outcomes(answered: Sequence[AnsweredCall]) -> list[Call]:
    """Write the outcomes of requests in one transaction, and notify the handlers of the calls.

    A purpose may apply in the same transaction that calls were accepted (`handlers.register_accepted`). With
    several outcomes, it waits only briefly for a lock.
    """
    fault_injection.crash_point("telephony.place.sent")
    ordered = sorted(answered, key=lambda answer: answer.call_id)  # so that two batches never deadlock
    accepted: defaultdict[str, list[int]] = defaultdict(list)  # the subjects of each purpose
    for answer in ordered:
        if isinstance(answer.outcome, Submitted) and handlers.applies_accepted(answer.purpose):
            accepted[answer.purpose].append(answer.subject_id)
    try:
        calls, done = _record_outcomes(ordered, accepted)
    except Exception as error:
        if not accepted or is_lock_timeout(error) or is_database_away(error):
            raise
        log.exception("accepted_calls_not_applied", calls=[answer.call_id for answer in ordered])
        calls, done = _record_outcomes(ordered, {})
    fault_injection.crash_point("telephony.place.written")
    for call in calls:
        if call.pk not in done:
            notify_handler(call)
    return calls


def _record_outcomes(
    ordered: Sequence[AnsweredCall], accepted: Mapping[str, Sequence[int]]
) -> tuple[list[Call], set[int]]:
    """Write the outcomes. Return the calls, and the ids of those whose handlers need no notification."""
    limit = limit_lock_waits(lock_waits.LOOP_S) if len(ordered) > 1 else nullcontext()
    with limit, limited_transaction(defers_fsync=True):
        by_account = sorted(ordered, key=lambda answer: answer.account_id)
        with prepared.pipeline():  # locks the calls, then their accounts
            find_calls = [find_locked_call(answer.call_id) for answer in ordered]
            reports = [begin_report(answer.account_id, answer.outcome) for answer in by_account]
            apply_accepted = handlers.begin_accepted(accepted)
        calls = [_write_outcome(find(), answer.outcome) for find, answer in zip(find_calls, ordered, strict=True)]
        done = apply_accepted(calls)
        for complete_report in reports:
            complete_report()
    return calls, done


def _claim(call_id: int, known: Call | None) -> tuple[Call, bool]:
    """Move the call from created to requesting if nothing forbids it. Return it and whether its status moved."""
    with transaction.atomic():
        with prepared.pipeline():
            find_call = find_locked_call(call_id, "account", "number", "pool", "organization")
            must_wait = sql.waits_before(known, clock.now()) if known else None
            find_cap = _find_cap(known) if known else None
        call = find_call()
        if call.status != Status.CREATED:
            return call, False
        now = clock.now()
        if call.cancel_requested_at is not None:
            return call, transition(call, Status.CANCELED)
        if now >= call.place_by:
            return call, transition(call, Status.NOT_PLACED, error_message="its deadline had passed")
        if now < call.not_before:
            return call, False
        if not account_outages.is_usable(call.account):
            return call, transition(
                call, Status.NOT_PLACED, error_message=account_outages.describe(call.account)[:255]
            )
        is_paused = call.pool.is_paused or call.number.is_paused
        if is_paused or not (call.account.is_active and call.organization.is_active):
            defer_call(call, now + PAUSED_RETRY)
            return call, False
        if must_wait is not None and must_wait():
            return call, False
        cap = (find_cap or _find_cap(call))()
        if cap.hold:
            return call, transition(call, Status.NOT_PLACED, error_message=str(cap.hold))
        wait_s = rate_limits.take_request_token(call.account, call.pool, now)
        if wait_s > 0:
            defer_call(call, now + timedelta(seconds=wait_s))
            return call, False
        if cap.applies and not spend_caps.reserve(call.organization_id, price_sql.CALLS, purpose=call.purpose):
            hold = spend_caps.find_hold(call.organization_id, price_sql.CALLS, call.purpose)
            return call, transition(
                call, Status.NOT_PLACED, error_message=str(hold or f"{spend_caps.REACHED} is reached.")
            )
        send_by = min(now + timedelta(seconds=settings.CALL_SEND_WINDOW_S), call.place_by)
        return call, transition(call, Status.REQUESTING, requested_at=now, send_by=send_by)


def _find_cap(call: Call) -> Callable[[], CapState]:
    return spend_caps.find_state(call.organization_id, price_sql.CALLS, call.purpose)


def _prepare(call: Call) -> Callable[[], Coroutine[Any, Any, AnsweredCall]]:
    """Return what requests the call when it is run, and never raises."""
    send_by = call.send_by
    assert send_by is not None
    try:
        provider, order = providers.for_account(call.account), _order_of(call)
        refusal = None
    except Exception as error:  # nothing is sent
        log.exception("provider_unusable", account=call.account_id)
        refusal = Rejected(False, "", str(error)[:255], "configuration", True)

    async def request() -> AnsweredCall:
        left_s = (send_by - clock.now()).total_seconds()
        if refusal is not None:
            outcome: Outcome = refusal
        elif left_s <= 0:
            # this process stalled after the claim; nothing was sent, so the call may be claimed again
            outcome = RateLimited(0.0, "the claim expired before the request was sent")
        else:
            outcome = await _place(provider, replace(order, leave_within_s=left_s))
        return AnsweredCall(call.pk, call.account_id, call.purpose, call.subject_id, outcome)

    return request


async def _place(provider: Provider, order: CallRequest) -> Outcome:
    """Request the call; in a thread if the provider's client blocks."""
    try:
        if provider.is_async:
            return await provider.place_async(order)
        return await asyncio.get_running_loop().run_in_executor(_blocking_requests, provider.place, order)
    except Exception as error:  # the provider violates its contract; it may have requested the call
        log.exception("provider_raised")
        return Unknown(type(error).__name__)


def _order_of(call: Call) -> CallRequest:
    return CallRequest(
        to=str(call.to_phone),
        from_=str(call.from_phone),
        voice_url=webhook_urls.webhook(call, "voice"),
        status_url=webhook_urls.webhook(call, "status"),
        ring_timeout_s=call.ring_timeout_s,
        time_limit_s=call.time_limit_s,
        leave_within_s=0.0,
        detect_machine=call.detect_machine,
        fallback_url=webhook_urls.fallback(call.account.provider, call.pk),
    )


def record_outcome(call_id: int, outcome: Outcome) -> Call:
    """Write the outcome of a call request.

    If a webhook or a reconciler was faster, its result stands. If the outcome is lost before this, they recover
    it.
    """
    with transaction.atomic():
        prepared.defer_fsync()
        call = _write_outcome(lock_call(call_id), outcome)
        report_outcome(call.account_id, outcome)
    return call


def _write_outcome(call: Call, outcome: Outcome) -> Call:
    """Write the outcome of a locked call. Runs in the caller's transaction."""
    if isinstance(outcome, Submitted):
        _record_submission(call, outcome)
    elif isinstance(outcome, RateLimited):
        _requeue(call, outcome)
    elif isinstance(outcome, Rejected) and call.sid is None:
        transition(
            call,
            Status.REJECTED,
            actor=PROVIDER,
            data={"about": outcome.kind, "permanent": outcome.permanent},
            error_code=outcome.code,
            error_message=outcome.message,
        )
    elif isinstance(outcome, Unknown) and call.sid is None:
        transition(call, Status.UNKNOWN, data={"why": outcome.reason})
    return call


def is_unanswered(outcome: Outcome) -> bool:
    """Return whether the provider did not answer: it was not reached, or what it did is unknown."""
    return isinstance(outcome, Unknown) or (isinstance(outcome, RateLimited) and outcome.is_unreachable)


def report_outcome(account_id: int, outcome: Outcome) -> None:
    """Update the account's circuit breaker with the outcome of a request. Runs in the caller's transaction.

    A provider that only this host does not reach is not the account's failure. The requests of other hosts go on.
    """
    begin_report(account_id, outcome)()


def begin_report(account_id: int, outcome: Outcome) -> Callable[[], None]:
    """Run the statement of `report_outcome` for a success. Return a function that does the rest."""
    if isinstance(outcome, Submitted) or (isinstance(outcome, Rejected) and outcome.permanent):
        return account_outages.begin_success(account_id)  # a refusal of one number also proves that it works
    return partial(_report_failure, account_id, outcome)


def _report_failure(account_id: int, outcome: Rejected | RateLimited | Unknown) -> None:
    if is_unanswered(outcome) and reachability.process.may_be_cut_off(PLACER):
        return
    if is_unanswered(outcome):
        account_outages.record_failure(account_id, account_outages.Outage.NO_ANSWER, outcome.reason)
    elif isinstance(outcome, Rejected) and outcome.kind in ("configuration", "permission"):
        account_outages.record_failure(
            account_id, account_outages.Outage.REFUSED, outcome.reason, is_certain=outcome.is_account_wide
        )


def _record_submission(call: Call, outcome: Submitted) -> None:
    if call.sid not in (None, outcome.sid):
        log.error("provider_call_mismatch", call=call.pk)
        return
    call.sid = outcome.sid
    if not transition(call, outcome.status, actor=PROVIDER, sid=outcome.sid):
        update_fields(call, sid=outcome.sid)
    if call.ended_at is None and call.cancel_requested_at is None:
        return
    if call.ended_at is not None and call.status not in (Status.NOT_PLACED, Status.LOST):
        return
    schedule_hang_up(call)


def _requeue(call: Call, outcome: RateLimited) -> None:
    if call.status == Status.UNKNOWN and call.sid is None:
        # This process was paused meanwhile. It alone may have sent the request, and it knows that none was sent.
        transition(call, Status.NOT_PLACED, error_message=outcome.reason[:255])
        return
    if call.status != Status.REQUESTING or call.sid is not None:
        return
    if call.cancel_requested_at is not None:
        transition(call, Status.CANCELED)
        return
    retry_at = clock.now() + timedelta(seconds=outcome.retry_after_s)
    update_fields(call, status=Status.CREATED, not_before=retry_at, send_by=None)
    append_call_event(call, "held_back", PROVIDER, retry_in_s=outcome.retry_after_s, why=outcome.reason)


def hang_up(call_id: int, *, actor: Actor = SYSTEM, reason: str = "") -> Call:
    """End the call; an ended call is left unchanged. May run inside or outside a transaction.

    A call that was not requested yet ends now. If the provider accepted the call, a loop asks it to end the call
    (`hang_ups`), so the caller never waits for the provider. If the outcome of the request is still open, the
    provider is asked as soon as the outcome is known or the first webhook arrives. Raises Call.DoesNotExist.
    """
    with transaction.atomic():
        call = lock_call(call_id)
        if call.ended_at is not None:
            return call
        if call.cancel_requested_at is None:
            update_fields(call, cancel_requested_at=clock.now())
            append_call_event(call, "cancel_requested", actor, reason=reason)
        if call.status == Call.Status.CREATED:
            transition(call, Call.Status.CANCELED, actor=actor)
            transaction.on_commit(partial(notify_handler, call), robust=True)
        elif call.sid is not None:
            schedule_hang_up(call)
    return call


def repeat_prompt(call_id: int) -> None:
    """Have the provider fetch the prompt of an answered call again after the commit, because it has changed.

    A worker asks it. If that fails, the person hears the change after the next key.
    """
    enqueue(settings.DISPATCH_QUEUE, REPEAT_PROMPT, call_id)


def request_prompt(call_id: int) -> None:
    """Ask the provider to fetch the prompt of an answered call again, in a thread. Ignores a call that ended."""
    call = Call.objects.select_related("account").get(pk=call_id)
    if call.sid is None or call.ended_at is not None:
        return
    if (slot := HANG_UPS.reserve(call.account_id, ("prompt", call_id))) is not None:
        with slot:
            slot.start(_request_prompt, call, call.sid)


def _request_prompt(call: Call, sid: str) -> None:
    try:
        providers.for_account(call.account).repeat_prompt(sid, webhook_urls.webhook(call, "voice"))
    except (CallGone, ProviderError, providers.UnknownProvider) as error:
        log.warning("prompt_not_repeated", call=call.pk, error=str(error))
