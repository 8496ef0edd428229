"""The end of a call: its result, the health of its target, and who goes next, in one transaction."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from dispatch.core import clock, faults
from dispatch.outbox import metrics, sql
from dispatch.outbox.rules import calls as rules
from dispatch.outbox.rules.calls import Verdict
from dispatch.outbox.services import targets
from dispatch.outbox.services.claims import Claim, Line, advance, lock_groups, settle
from dispatch.outbox.services.putting_back import Ending, ask_end, end
from dispatch.outbox.services.starting import Call


@dataclass(frozen=True)
class Result:
    """What came of one call. `answer` is the beginning of the receiver's body."""

    call: Call
    verdict: Verdict
    started_at: datetime
    ended_at: datetime
    elapsed_s: float
    status_code: int | None = None
    answer: str = ""


def finish(results: Sequence[Result], *, claim: bool = True) -> list[Claim]:
    """Writes the results. Those of an older epoch are recorded as late and change nothing; a message cancelled
    meanwhile stays CANCELLED. Their groups go on: what is claimed for that is to be published after the commit.

    `claim=False` leaves the next to the poller."""
    now = clock.now()
    groups = {result.call.group_id for result in results if result.call.is_ordered}
    # One batch may hold an older and a newer epoch of the same message: each is one row, and one of them fits.
    distinct = {(result.call.id, result.call.epoch): result for result in results}
    endings = [_ending(result, now) for result in distinct.values()]
    own_targets = {result.call.target_id for result in results}
    pools = sorted({result.call.pool_id for result in results})
    claims: list[Claim] = []
    with transaction.atomic():
        if claim and not targets.is_concerned(results):  # the way of nearly all: three round trips
            with sql.pipelined(one_plan=True):
                lock_groups(groups)
                ended = ask_end(endings, ["PROCESSING", "CANCELLED"], now)
                waiting = Line(now, own=groups, own_targets=own_targets, pools=pools)
                _record(results, _in_time(distinct, ended()))
                claims, _ = waiting.claim()
        else:
            lock_groups(groups)
            in_time = _in_time(distinct, end(endings, ["PROCESSING", "CANCELLED"], now))
            _record(results, in_time)
            targets.heed([result for result in results if id(result) in in_time], now)
            if claim:
                claims, _ = advance(now, own=groups, own_targets=own_targets, pools=pools)
            else:
                settle(groups, now)
        faults.point("outbox.finish.before_commit")
    faults.point("outbox.finish.committed")
    return claims


def _in_time(distinct: Mapping[tuple[int, int], Result], ended: Mapping[int, str]) -> set[int]:
    """The id() of the results that ended their message; of two epochs of one, only the newer can have."""
    newest: dict[int, int] = {}
    for message_id, epoch in distinct:
        newest[message_id] = max(epoch, newest.get(message_id, 0))
    return {
        id(result)
        for (message_id, epoch), result in distinct.items()
        if message_id in ended and epoch == newest[message_id]
    }


def _ending(result: Result, now: datetime) -> Ending:
    call, verdict = result.call, result.verdict
    spent = call.attempts + 1
    if verdict.outcome == rules.DELIVERED:
        return Ending(call.id, call.epoch, "COMPLETED", now, 1, verb="completed")
    if verdict.outcome == rules.DEFERRED:
        due_at = now + timedelta(seconds=verdict.delay_s)
        return Ending(call.id, call.epoch, "PENDING", due_at, waiting_for=verdict.error_class, verb="deferred")
    delay = None
    if verdict.outcome == rules.FAILED:
        schedule = call.endpoint.retry_schedule_s if call.endpoint else settings.OUTBOX_RETRY_SCHEDULE_S
        jitter = call.endpoint.retry_jitter if call.endpoint else 0.2
        delay = rules.retry_delay_s(schedule, spent, jitter, random.random())
    if delay is None:
        return Ending(call.id, call.epoch, "ERROR", now, 1, error=verdict.error, verb="failed")
    due_at = now + timedelta(seconds=delay)
    return Ending(
        call.id, call.epoch, "PENDING", due_at, 1, error=verdict.error, waiting_for="retry", verb="retrying"
    )


def _record(results: Sequence[Result], in_time: set[int]) -> None:
    names = ("organizations", "ids", "numbers", "epochs", "urls", "starts", "ends", "elapsed", "outcomes", "codes",
             "answers", "classes", "errors", "spents", "lates")  # fmt: skip
    values = [
        (
            r.call.organization_id, r.call.id, r.call.number, r.call.epoch, r.call.url, r.started_at, r.ended_at,
            r.elapsed_s, r.verdict.outcome, r.status_code, r.answer, r.verdict.error_class,
            r.verdict.error[:300], r.verdict.spends and id(r) in in_time, id(r) not in in_time,
        )
        for r in results
    ]  # fmt: skip
    metrics.late.inc(len(results) - len(in_time))
    sql.do(sql.ADD_ATTEMPTS, dict(zip(names, sql.columns(values, len(names)), strict=True)))
