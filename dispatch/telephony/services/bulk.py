"""Create calls in bulk, as already claimed, and write the outcomes of their requests together.

Such a call starts as `requesting`, in the transaction of its subject: the commit is the claim, so that no other
process ever requests it. The purpose's Event names the call and stands for its creation and for an immediate end.
All later changes append separate Events.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from dispatch.capacity import account_outages, line_leases
from dispatch.capacity import bulk as capacity
from dispatch.core import clock, events
from dispatch.core.db.prepared import fetch_all, integers, texts
from dispatch.core.events import EventRow
from dispatch.core.runtime import reachability
from dispatch.telephony import rules, sql, webhook_urls
from dispatch.telephony.models import Call, holder_of
from dispatch.telephony.providers.base import CallRequest, Outcome, RateLimited, Rejected, Submitted
from dispatch.telephony.services import call_requests
from dispatch.telephony.services.calls import PROVIDER, notify_handler

log = structlog.get_logger(__name__)

NOT_NOW = "the provider could not accept it now"


class NewCall(NamedTuple):
    """A call to place now. `holder_of(purpose, subject_id, attempt)` holds its line.

    `context` as in `create_call`.
    """

    organization_id: int
    subject_id: int
    attempt: int
    to_phone: str
    account_id: int
    number_id: int
    from_phone: str
    line_slot: int
    pool_id: int
    pool_slot: int
    ring_timeout_s: int
    time_limit_s: int
    detect_machine: bool
    context: Mapping[str, Any]
    turn_ms: int = 0  # from now until the provider may be asked
    send_ms: int = 0  # from now until the request must be sent
    customer: str = ""  # on whose behalf it calls


def create_calls(purpose: str, calls: Sequence[NewCall], *, now: datetime) -> dict[int, int]:
    """Write the calls as `requesting`, and return their ids by subject. Runs in the caller's transaction.

    A subject is missing from the result if its call violated a unique index: an open call to the same phone, a
    line in use, an existing attempt. After the commit, the caller requests each call once, within `send_ms` from
    `now`.
    """
    # In a fixed order, so that two batches never deadlock.
    ordered = sorted(calls, key=lambda call: (call.organization_id, call.to_phone))
    params = {
        "organizations": integers(call.organization_id for call in ordered),
        "subjects": integers(call.subject_id for call in ordered),
        "attempts": integers(call.attempt for call in ordered),
        "phones": texts(call.to_phone for call in ordered),
        "accounts": integers(call.account_id for call in ordered),
        "numbers": integers(call.number_id for call in ordered),
        "from_phones": texts(call.from_phone for call in ordered),
        "line_slots": integers(call.line_slot for call in ordered),
        "pools": integers(call.pool_id for call in ordered),
        "pool_slots": integers(call.pool_slot for call in ordered),
        "rings": integers(call.ring_timeout_s for call in ordered),
        "limits": integers(call.time_limit_s for call in ordered),
        "detects": integers(int(call.detect_machine) for call in ordered),
        "contexts": texts(_texts_of(ordered)),
        "turns": integers(call.turn_ms for call in ordered),
        "sends": integers(call.send_ms for call in ordered),
        "customers": texts(call.customer for call in ordered),
    }
    rows = fetch_all(sql.CREATE_CALLS, {**params, "purpose": purpose, "now": now})
    return {subject_id: call_id for call_id, subject_id in rows}


def _texts_of(calls: Sequence[NewCall]) -> list[str]:
    """Return the contexts as JSON. The calls of one campaign share a context."""
    encoded: dict[int, str] = {}
    return [encoded.get(id(c.context)) or encoded.setdefault(id(c.context), json.dumps(c.context)) for c in calls]


def busy_phones(phones: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return the (organization, phone) pairs that have an open call."""
    given = {
        "organizations": integers(organization_id for organization_id, _ in phones),
        "phones": texts(phone for _, phone in phones),
    }
    return {(organization_id, phone) for organization_id, phone in fetch_all(sql.BUSY_PHONES, given)}


def pools_of_open_calls(purpose: str, subject_ids: Collection[int]) -> set[int]:
    """Return the pools whose lines the open calls of these subjects hold."""
    open_calls = Call.objects.filter(purpose=purpose, subject_id__in=subject_ids, ended_at=None)
    return set(open_calls.values_list("pool_id", flat=True))


def cancelled(call_ids: Sequence[int]) -> list[bool]:
    """Return for each call whether it must not be requested from the provider.

    That is if a hang-up was requested, or the organization was deactivated.
    """
    cancelled_ids = {call_id for (call_id,) in fetch_all(sql.CANCELLED, {"ids": integers(call_ids)})}
    return [call_id in cancelled_ids for call_id in call_ids]


def build_request(call: NewCall, call_id: int, provider: str, leave_within_s: float) -> CallRequest:
    """Return the request for the provider."""
    return CallRequest(
        to=call.to_phone,
        from_=call.from_phone,
        voice_url=webhook_urls.webhook_of(provider, call_id, "voice"),
        status_url=webhook_urls.webhook_of(provider, call_id, "status"),
        ring_timeout_s=call.ring_timeout_s,
        time_limit_s=call.time_limit_s,
        leave_within_s=leave_within_s,
        detect_machine=call.detect_machine,
        fallback_url=webhook_urls.fallback(provider, call_id),
        waits_for_beep="voicemail" in call.context,
    )


class RequestResult(NamedTuple):
    """The outcome of a call request."""

    call_id: int
    call: NewCall
    outcome: Outcome


class EndedCall(NamedTuple):
    """A call that ended with its request: refused, rate limited, or ended by a simulated provider."""

    call_id: int
    call: NewCall
    status: str
    outcome: Outcome


def record_results(purpose: str, answers: Sequence[RequestResult]) -> tuple[list[EndedCall], list[RequestResult]]:
    """Write the outcomes. Must run in the caller's transaction.

    Returns the calls that ended, which the caller reports, and the results that a concurrent change has overtaken,
    which the caller passes to `record_result` after the commit. A rate-limited call (429: certainly not processed)
    ends as not placed, and the eligibility of its subject is checked again.
    """
    now = clock.now()
    columns = [_columns_of(answer) for answer in answers]
    rows = fetch_all(
        sql.RECORD_RESULTS,
        {
            "ids": integers(answer.call_id for answer in answers),
            "statuses": texts(status for status, *_ in columns),
            "sids": texts(sid for _, sid, *_ in columns),
            "codes": texts(code for *_, code, _ in columns),
            "messages": texts(message for *_, message in columns),
            "ends": list(rules.ENDS),
            "now": now,
        },
    )
    moved = {call_id for (call_id,) in rows}
    ended, event_rows, overtaken = [], [], []
    for answer, (status, _, code, message) in zip(answers, columns, strict=True):
        if answer.call_id not in moved:
            overtaken.append(answer)
        elif status in rules.ENDS:
            ended.append(EndedCall(answer.call_id, answer.call, status, answer.outcome))
        else:
            details = {"code": code, "message": message}
            event_rows.append(
                EventRow(
                    answer.call.organization_id,
                    f"call.{status}",
                    answer.call_id,
                    {
                        **answer.call.context,
                        "purpose": purpose,
                        "subject_id": answer.call.subject_id,
                        "attempt": answer.call.attempt,
                        **{name: value for name, value in details.items() if value},
                    },
                )
            )
    events.append_many(event_rows, actor=PROVIDER)
    line_leases.release_lines(
        *(holder_of(purpose, ended_call.call.subject_id, ended_call.call.attempt) for ended_call in ended)
    )
    return ended, overtaken


def record_result(answer: RequestResult) -> Call:
    """Write one outcome as the placer does, and notify the handler. Call it outside any transaction."""
    call = call_requests.record_outcome(answer.call_id, answer.outcome)
    notify_handler(call)
    return call


def _columns_of(answer: RequestResult) -> tuple[str, str | None, str, str]:
    """Return the new status, SID, error code and error message of a call."""
    outcome = answer.outcome
    if isinstance(outcome, Submitted):
        return outcome.status, outcome.sid, "", ""
    if isinstance(outcome, Rejected):
        return "rejected", None, outcome.code[:16], outcome.message[:255]
    if isinstance(outcome, RateLimited):
        return "not_placed", None, "", (outcome.reason or NOT_NOW)[:255]
    return "unknown", None, "", outcome.reason[:255]


def apply_rate_limit_feedback(answers: Sequence[RequestResult]) -> None:
    """Pause accounts whose provider asked for it, and update the accounts' circuit breakers.

    Call it outside any transaction.
    """
    limited = {
        answer.call.account_id: answer.outcome.retry_after_s
        for answer in answers
        if isinstance(answer.outcome, RateLimited)
        and answer.outcome.retry_after_s > 0  # 0: no request was sent
        and not (answer.outcome.is_unreachable and reachability.process.may_be_cut_off(call_requests.PLACER))
    }
    for account_id, retry_after_s in limited.items():
        capacity.pause_account(account_id, max(retry_after_s, 1.0))
    by_account: dict[int, list[Outcome]] = {}
    for answer in answers:
        by_account.setdefault(answer.call.account_id, []).append(answer.outcome)
    for account_id, outcomes in by_account.items():
        _report_outcomes(account_id, outcomes)


def _report_outcomes(account_id: int, outcomes: Sequence[Outcome]) -> None:
    """Update the account's circuit breaker with the outcomes of a batch.

    One success stands for the whole batch. Without a success, as many failures are reported as begin an outage.
    Refusals of the whole account come last.
    """
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Submitted)][:1]
    failed = [] if accepted else list(outcomes)[: account_outages.MAX_FAILED_REQUESTS]
    certain = [outcome for outcome in outcomes if isinstance(outcome, Rejected) and outcome.is_account_wide][:1]
    for outcome in [*accepted, *failed, *certain]:
        call_requests.report_outcome(account_id, outcome)
