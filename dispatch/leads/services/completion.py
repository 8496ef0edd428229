"""Complete a lead's call: finish the lead, or schedule its next attempt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django.db import transaction

from dispatch.core import clock, events, fault_injection
from dispatch.core.db.prepared import pipeline, prefer_index_plans
from dispatch.core.events import EventRow
from dispatch.leads import counters, eligibility, redis_queue, sql
from dispatch.leads.redis_queue import PURPOSE, ScheduleEntry, to_ms
from dispatch.leads.rules import retries
from dispatch.leads.rules.retries import Defer, End, LeadFacts
from dispatch.leads.rules.states import Outcome, Reason, Status
from dispatch.telephony.group_handlers import ReportedCall
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import RateLimited, Rejected, Submitted
from dispatch.telephony.rules import ENDS, NEVER_PLACED
from dispatch.telephony.services import apply_keys_of, is_bad_number, was_heard
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services.bulk import RequestResult

_chance = random.Random()


class CallEnd(NamedTuple):
    """The end of one attempt.

    `sent_back_s`: the provider could not accept the call now, and asked for that many seconds before the next
    request; 0 if no request was sent. None: it was an attempt.
    """

    lead_id: int
    attempt: int
    call_id: int
    status: str
    outcome: Outcome
    sent_back_s: float | None = None


def record_outcomes(
    answers: Sequence[RequestResult], locked_elsewhere: list[RequestResult] | None = None
) -> list[RequestResult]:
    """Record the provider's responses, and finish the leads whose calls have ended.

    Returns the responses that another session has overtaken, for `telephony.record_result`. Call it outside any
    transaction.

    With `locked_elsewhere`, it does not wait for leads that another session has locked: their responses are added
    to that list, to be recorded later.
    """
    telephony.apply_rate_limit_feedback(answers)
    with transaction.atomic():
        transaction.on_commit(partial(fault_injection.crash_point, "leads.settle.before_release"))
        with pipeline():
            prefer_index_plans()
            lead_ids = [answer.call.subject_id for answer in answers if _ends(answer)]
            if locked_elsewhere is None:
                locked = _locked(lead_ids)
            else:
                locked, skipped = _locked_at_once(lead_ids)
                if skipped:
                    later = {a.call_id for a in answers if _ends(a) and a.call.subject_id in skipped}
                    locked_elsewhere += [answer for answer in answers if answer.call_id in later]
                    answers = [answer for answer in answers if answer.call_id not in later]
            ended, overtaken = telephony.record_results(PURPOSE, answers)
            if ended:
                _finish_attempts([_end_of(call_end) for call_end in ended], locked)
        if ended:
            pools = {call_end.call.pool_id for call_end in ended}
            transaction.on_commit(partial(redis_queue.notify_dialers, pools), robust=True)
        fault_injection.crash_point("leads.settle.before_commit")
    fault_injection.crash_point("leads.settle.committed")
    for kind, count in Counter(type(answer.outcome).__name__.lower() for answer in answers).items():
        counters.asked.labels(kind).inc(count)
    return overtaken


def call_changed(call: Call) -> None:
    """Handle a change of a lead's call that a webhook or a reconciler reported.

    Only its end matters, and an ended call does not change: early and repeated notifications have no effect. The
    session that ends a call notifies of it.
    """
    if call.ended_at is None:
        return
    if call.keys_pressed:  # they decide what follows, but their webhook may not have applied them
        apply_keys_of(PURPOSE, [call.subject_id])
    was_spoken = call.status != Call.Status.COMPLETED or was_heard(call)
    outcome = retries.outcome_of_call(
        call.status, call.answered_by, bad_number=is_bad_number(call), was_spoken=was_spoken
    )
    with transaction.atomic():
        locked = _locked([call.subject_id])
        _finish_attempts([CallEnd(call.subject_id, call.attempt, call.pk, call.status, outcome)], locked)
        transaction.on_commit(partial(redis_queue.notify_dialers, [call.pool_id]), robust=True)
    fault_injection.crash_point("leads.ended.committed")


def finish_reported(calls: Sequence[ReportedCall], locked: dict[int, LeadFacts]) -> None:
    """Finish the leads of calls that a group of reports ends, or has found ended. Runs in the group's transaction.

    `locked`: those of their leads that are being called. Not for calls with keys or error codes.
    """
    ends = []
    for call in calls:
        was_spoken = call.status != Call.Status.COMPLETED or call.was_heard
        outcome = retries.outcome_of_call(call.status, call.answered_by, was_spoken=was_spoken)
        ends.append(CallEnd(call.subject_id, call.attempt, call.pk, call.status, outcome))
    _finish_attempts(ends, locked)
    transaction.on_commit(partial(redis_queue.notify_dialers, {call.pool_id for call in calls}), robust=True)


def finish_claim_without_call(lead_id: int, token: int) -> None:
    """Handle a claim without a call, which counts as not placed. No code path should leave such a claim."""
    with transaction.atomic():
        _finish_attempts([CallEnd(lead_id, token, 0, "not_placed", Outcome.NOT_PLACED)], _locked([lead_id]))


def _ends(answer: RequestResult) -> bool:
    outcome = answer.outcome
    return isinstance(outcome, Rejected | RateLimited) or (
        isinstance(outcome, Submitted) and outcome.status in ENDS
    )


def _end_of(ended: telephony.EndedCall) -> CallEnd:
    outcome = ended.outcome
    bad_number = isinstance(outcome, Rejected) and outcome.kind == "number"
    return CallEnd(
        ended.call.subject_id,
        ended.call.attempt,
        ended.call_id,
        ended.status,
        retries.outcome_of_call(ended.status, bad_number=bad_number),
        outcome.retry_after_s if isinstance(outcome, RateLimited) else None,
    )


def _locked(lead_ids: Iterable[int]) -> dict[int, LeadFacts]:
    """Return those of these leads that are being called, with their rows locked."""
    rows = sql.fetch_all(sql.LOCK_AND_WAIT, {"ids": sql.integers(lead_ids)})
    return {row[0]: sql.facts_of(row) for row in rows if row[-1] == Status.PROCESSING}


def _locked_at_once(lead_ids: Sequence[int]) -> tuple[dict[int, LeadFacts], set[int]]:
    """Lock as `_locked` does, but skip leads that other sessions have locked, and also return their ids."""
    rows = sql.fetch_all(sql.LOCK, {"ids": sql.integers(lead_ids)})
    missing = set(lead_ids) - {row[0] for row in rows}
    if missing:
        missing = {row[0] for row in sql.fetch_all(sql.EXISTING, {"ids": sql.integers(missing)})}
    return {row[0]: sql.facts_of(row) for row in rows if row[-1] == Status.PROCESSING}, missing


def _finish_attempts(ends: Sequence[CallEnd], locked: dict[int, LeadFacts]) -> None:
    """Finish or reschedule locked leads whose attempt ended. The end of an older attempt changes nothing."""
    now = clock.now()
    known = [end for end in ends if end.lead_id in locked and locked[end.lead_id].token == end.attempt]
    campaigns = eligibility.campaigns({locked[end.lead_id].campaign_id for end in known}) if known else {}
    finished: list[tuple[CallEnd, End]] = []
    again: list[tuple[CallEnd, Defer, LeadFacts]] = []
    replanned: set[int] = set()  # by a recorded outcome
    event_rows: list[EventRow] = []
    for end in known:
        lead = locked[end.lead_id]
        if end.status in NEVER_PLACED:
            lead = lead._replace(attempts=lead.attempts - 1)
        verdict: Defer | End
        if end.sent_back_s is not None:
            verdict = retries.after_not_accepted(lead, now, end.sent_back_s)
        elif end.status == Call.Status.NOT_PLACED:
            verdict = retries.after_not_placed(lead, now)
        else:
            campaign = campaigns[lead.campaign_id]
            verdict = retries.after_call(lead, campaign, end.outcome, now, _chance.random())
        if lead.call_back_at is not None or (lead.disposition and end.status not in NEVER_PLACED):
            by_retry_rule = verdict
            verdict = retries.after_disposition(verdict, lead, campaigns[lead.campaign_id], end.outcome, now)
            if verdict is not by_retry_rule:
                replanned.add(lead.id)
        if lead.is_canceled:
            verdict = retries.after_cancellation(verdict, end.outcome)
        details = (
            f'"call": {end.call_id}, "call_status": "{end.status}", "attempt": {end.attempt},'
            f' "reason": "{verdict.reason}", "campaign_id": {lead.campaign_id}'
        )
        if isinstance(verdict, End):
            finished.append((end, verdict))
            data = f'{{"outcome": "{verdict.outcome}", {details}}}'
            event_rows.append(EventRow(lead.organization_id, "lead.finished", lead.id, data))
        else:
            again.append((end, verdict, lead))
            data = f'{{"outcome": "{end.outcome}", {details}, "due_at": "{verdict.until.isoformat()}"}}'
            event_rows.append(EventRow(lead.organization_id, "lead.again", lead.id, data))
    for result, count in Counter([*(v.outcome for _, v in finished), *(v.reason for _, v, _ in again)]).items():
        counters.picked.labels(result).inc(count)
    _write_ends(finished, again, replanned, now)
    events.append_many(event_rows)
    entries = [
        ScheduleEntry(
            campaigns[locked[end.lead_id].campaign_id].pool_id, end.lead_id, end.attempt + 1, to_ms(verdict.until)
        )
        for end, verdict, _ in again
    ]
    if entries:
        transaction.on_commit(partial(redis_queue.enqueue, entries), robust=True)


def _write_ends(
    finished: Sequence[tuple[CallEnd, End]],
    again: Sequence[tuple[CallEnd, Defer, LeadFacts]],
    replanned: Container[int],
    now: datetime,
) -> None:
    if finished:
        sql.execute(
            sql.FINISH,
            {
                **_columns([end for end, _ in finished]),
                "outcomes": sql.texts(verdict.outcome for _, verdict in finished),
                "reasons": sql.texts(verdict.reason for _, verdict in finished),
                "now": now,
            },
        )
    if again:
        sql.execute(
            sql.AGAIN,
            {
                **_columns([end for end, _, _ in again]),
                "uncounted": sql.integers(
                    int(end.status in NEVER_PLACED or verdict.reason == Reason.CALL_BACK)
                    for end, verdict, _ in again
                ),
                "dues": [verdict.until for _, verdict, _ in again],
                "reasons": sql.texts(verdict.reason for _, verdict, _ in again),
                **_unplaced_columns(again),
            },
        )
        if restarted := [end.lead_id for end, _, _ in again if end.lead_id in replanned]:
            sql.execute(sql.RESTART_PATIENCE, {"ids": sql.integers(restarted)})


def _unplaced_columns(again: Sequence[tuple[CallEnd, Defer, LeadFacts]]) -> dict[str, str]:
    """Return the columns that count consecutive calls that were not placed. A placed call resets them."""
    is_refused = [end.status == Call.Status.REJECTED for end, _, _ in again]
    is_placed = [end.status not in NEVER_PLACED for end, _, _ in again]
    return {
        "refusals": sql.integers(
            0 if placed else lead.refusals + refused
            for (_, _, lead), placed, refused in zip(again, is_placed, is_refused, strict=True)
        ),
        "sent_back": sql.integers(
            0 if placed or refused else lead.sent_back + (end.sent_back_s != 0)
            for (end, _, lead), placed, refused in zip(again, is_placed, is_refused, strict=True)
        ),
    }


def _columns(ends: Sequence[CallEnd]) -> dict[str, str]:
    return {
        "ids": sql.integers(end.lead_id for end in ends),
        "lasts": sql.texts(end.outcome for end in ends),
        "uncounted": sql.integers(int(end.status in NEVER_PLACED) for end in ends),
    }
