"""A lead's call is over: the lead is finished, or gets a next time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db import transaction

from dispatch.core import clock, events, faults, rows
from dispatch.core.events import EventLine
from dispatch.core.statements import by_index, pipelined
from dispatch.leads import gating, measures, schedule, sql
from dispatch.leads.rules import retries
from dispatch.leads.rules.facts import Defer, End, LeadFacts
from dispatch.leads.rules.retries import up_to_ms
from dispatch.leads.rules.words import Outcome, Reason, Status
from dispatch.leads.schedule import PURPOSE, Entry, ms
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import RateLimited, Rejected, Submitted
from dispatch.telephony.rules import ENDS, NEVER_PLACED
from dispatch.telephony.services import batches as telephony
from dispatch.telephony.services import blames_the_number
from dispatch.telephony.services.batches import Answered

_chance = random.Random()


class CallEnd(NamedTuple):
    """The end of one attempt. `sent_back_s`: the provider could not take the call now and was not asked in vain
    before so many seconds; None: it was an attempt."""

    lead_id: int
    attempt: int
    call_id: int
    status: str
    outcome: Outcome
    sent_back_s: float | None = None


def settle(answers: Sequence[Answered]) -> list[Answered]:
    """Writes what the provider answered, and finishes the leads whose calls are over by it. Returns those of which
    somebody else knew better meanwhile: `telephony.settle_one` is for them. Outside of any transaction."""
    telephony.heed(answers)
    with transaction.atomic():
        transaction.on_commit(partial(faults.point, "leads.settle.before_release"))
        with pipelined():
            by_index()
            locked = _locked(one.call.subject_id for one in answers if _ends(one))
            ended, others = telephony.settle_many(PURPOSE, answers)
            if ended:
                _finish([_end_of(one) for one in ended], locked)
        if ended:
            pools = {one.call.pool_id for one in ended}
            transaction.on_commit(partial(schedule.ring, pools), robust=True)
        faults.point("leads.settle.before_commit")
    faults.point("leads.settle.committed")
    for kind, count in Counter(type(answer.outcome).__name__.lower() for answer in answers).items():
        measures.asked.labels(kind).inc(count)
    return others


def call_changed(call: Call) -> None:
    """The call of a lead moved, as a webhook or a reconciler found. Reads it as it is now, so that early, late and
    doubled news are the same."""
    if call.ended_at is None:
        call = rows.get(Call, call.pk)
        if call.ended_at is None:
            return
    outcome = retries.outcome_of_call(call.status, call.answered_by, bad_number=blames_the_number(call))
    with transaction.atomic():
        locked = _locked([call.subject_id])
        _finish([CallEnd(call.subject_id, call.attempt, call.pk, call.status, outcome)], locked)
        transaction.on_commit(partial(schedule.ring, [call.pool_id]), robust=True)
    faults.point("leads.ended.committed")


def without_call(lead_id: int, token: int) -> None:
    """A claim that has no call, which no path leaves behind: it is taken for one that was not placed."""
    with transaction.atomic():
        _finish([CallEnd(lead_id, token, 0, "not_placed", Outcome.NOT_PLACED)], _locked([lead_id]))


def _ends(answer: Answered) -> bool:
    outcome = answer.outcome
    return isinstance(outcome, Rejected | RateLimited) or (
        isinstance(outcome, Submitted) and outcome.status in ENDS
    )


def _end_of(ended: telephony.Ended) -> CallEnd:
    outcome = ended.outcome
    bad_number = isinstance(outcome, Rejected) and outcome.kind == "number"
    return CallEnd(
        ended.call.subject_id,
        ended.call.attempt,
        ended.call_id,
        ended.status,
        retries.outcome_of_call(ended.status, bad_number=bad_number),
        max(outcome.retry_after_s, 1.0) if isinstance(outcome, RateLimited) else None,
    )


def _locked(lead_ids: Iterable[int]) -> dict[int, LeadFacts]:
    """The leads among these that are being called, their rows locked."""
    found = sql.rows(sql.LOCK_AND_WAIT, {"ids": sql.integers(lead_ids)})
    return {row[0]: sql.facts_of(row) for row in found if row[-1] == Status.PROCESSING}


def _finish(ends: Sequence[CallEnd], locked: dict[int, LeadFacts]) -> None:
    """Writes what becomes of locked leads whose attempt ended; an end of another attempt changes nothing."""
    now = clock.now()
    known = [end for end in ends if end.lead_id in locked and locked[end.lead_id].token == end.attempt]
    campaigns = gating.campaigns({locked[end.lead_id].campaign_id for end in known}) if known else {}
    over: list[tuple[CallEnd, End]] = []
    again: list[tuple[CallEnd, Defer]] = []
    told: list[EventLine] = []
    for end in known:
        lead = locked[end.lead_id]
        if end.status in NEVER_PLACED:
            lead = lead._replace(attempts=lead.attempts - 1)
        verdict: Defer | End
        if end.sent_back_s is not None:
            verdict = Defer(up_to_ms(now + timedelta(seconds=end.sent_back_s)), Reason.NOT_ACCEPTED)
        else:
            campaign = campaigns[lead.campaign_id]
            verdict = retries.after_call(lead, campaign, end.outcome, now, _chance.random())
        said = (
            f'"call": {end.call_id}, "call_status": "{end.status}", "attempt": {end.attempt},'
            f' "reason": "{verdict.reason}", "campaign_id": {lead.campaign_id}'
        )
        if isinstance(verdict, End):
            over.append((end, verdict))
            data = f'{{"outcome": "{verdict.outcome}", {said}}}'
            told.append(EventLine(lead.organization_id, "lead.finished", lead.id, data))
        else:
            again.append((end, verdict))
            data = f'{{"outcome": "{end.outcome}", {said}, "due_at": "{verdict.until.isoformat()}"}}'
            told.append(EventLine(lead.organization_id, "lead.again", lead.id, data))
    for word, count in Counter([*(v.outcome for _, v in over), *(v.reason for _, v in again)]).items():
        measures.picked.labels(word).inc(count)
    _write(over, again, now)
    events.append_many(told)
    entries = [
        Entry(campaigns[locked[end.lead_id].campaign_id].pool_id, end.lead_id, end.attempt + 1, ms(verdict.until))
        for end, verdict in again
    ]
    if entries:
        transaction.on_commit(partial(schedule.put, entries), robust=True)


def _write(over: Sequence[tuple[CallEnd, End]], again: Sequence[tuple[CallEnd, Defer]], now: datetime) -> None:
    if over:
        sql.do(
            sql.FINISH,
            {
                **_columns([end for end, _ in over]),
                "outcomes": sql.texts(verdict.outcome for _, verdict in over),
                "reasons": sql.texts(verdict.reason for _, verdict in over),
                "now": now,
            },
        )
    if again:
        sql.do(
            sql.AGAIN,
            {
                **_columns([end for end, _ in again]),
                "dues": [verdict.until for _, verdict in again],
                "reasons": sql.texts(verdict.reason for _, verdict in again),
            },
        )


def _columns(ends: Sequence[CallEnd]) -> dict[str, str]:
    return {
        "ids": sql.integers(end.lead_id for end in ends),
        "lasts": sql.texts(end.outcome for end in ends),
        "uncounted": sql.integers(int(end.status in NEVER_PLACED) for end in ends),
    }
