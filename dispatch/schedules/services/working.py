"""A worker's part: it takes its runs by compare-and-set, does the work, writes down what came of each, and tells
the status queue.

The outcome is a row (RunReport) before the status queue hears of it. The queue makes it prompt; the row makes sure
that a message that is lost, or a Redis that is flushed, never leads to a call being made a second time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from dispatch.core import clock, faults
from dispatch.core.queues import rq_queue
from dispatch.core.redis import REDIS_ERRORS
from dispatch.core.statements import columns, do, rows
from dispatch.schedules import kinds, metrics, sql
from dispatch.schedules.kinds.base import Assignment, Keep, Outcome
from dispatch.schedules.models import Schedule
from dispatch.schedules.services.applying import apply
from dispatch.schedules.services.sending import send

log = structlog.get_logger(__name__)

APPLY = "dispatch.schedules.tasks.apply_status"
# Of RQ's limit for one job, so much may have gone when a further run is begun.
SHARE_OF_JOB = 0.5

# [run id, epoch, outcome, result as JSON, error, again in s]
Report = list[Any]


def work(kind_name: str, pairs: Sequence[Sequence[int]]) -> int:
    """Does these runs, as far as they are still to be done in these epochs; how many were.

    A run of a later epoch, taken by another worker, cancelled or ended is passed over."""
    given = start(pairs)
    metrics.late.inc(len(pairs) - len(given))
    if not given:
        return 0
    faults.point("schedules.work.started")
    kind = kinds.get(kind_name)
    seconds = settings.RQ_QUEUES[kind.queue]["DEFAULT_TIMEOUT"] * SHARE_OF_JOB
    done: dict[int, tuple[Assignment, Outcome]] = {}
    try:
        for one, outcome in kind.work(given, Keep(given, _renew, seconds)):
            done[one.run_id] = (one, outcome)
    finally:
        faults.point("schedules.work.done")
        report(list(done.values()))
    give_back([one for one in given if one.run_id not in done], "Its worker had no time left for it.")
    return len(done)


def start(pairs: Sequence[Sequence[int]]) -> list[Assignment]:
    """in_progress → running for those that are in these epochs; what to do for each."""
    given = {"ids": [pair[0] for pair in pairs], "epochs": [pair[1] for pair in pairs]}
    now = clock.now()
    with transaction.atomic():
        found = rows(sql.START, {**given, "now": now, "lease": settings.SCHEDULE_LEASE_S})
    for row in found:
        metrics.start_lag.observe(max(0.0, (now - row[7]).total_seconds()) if row[7] else 0.0)
    return [_assignment(row) for row in found]


def report(done: Sequence[tuple[Assignment, Outcome]]) -> None:
    """Writes down what came of these runs, and tells the status queue. With both away, the lease lapses and the
    reconciler finds out what it can."""
    if not done:
        return
    reports = [
        [one.run_id, one.epoch, o.outcome, None if o.result is None else json.dumps(o.result), o.error[:500],
         o.again_in_s]
        for one, o in done
    ]  # fmt: skip
    try:
        write(reports)
        unwritten: list[Report] = []
    except DatabaseError as error:
        log.warning("reports could not be written, the status queue carries them", error=str(error).strip())
        unwritten = reports
    faults.point("schedules.report.written")
    ids = [one.run_id for one, _ in done]
    try:
        rq_queue(settings.SCHEDULE_STATUS_QUEUE).enqueue_call(
            APPLY,
            args=(ids, unwritten),
            result_ttl=settings.RQ_QUEUES[settings.SCHEDULE_STATUS_QUEUE]["DEFAULT_RESULT_TTL"],
            failure_ttl=settings.RQ_FAILURE_TTL_S,
        )
    except REDIS_ERRORS as error:
        log.warning("the status queue cannot be reached, applied here", runs=len(ids), error=str(error))
        if not unwritten:
            apply(ids)
    faults.point("schedules.report.sent")


def write(reports: Sequence[Report]) -> None:
    """Stores reports; those of another epoch than the run's, and those that are there, are dropped."""
    names = ("ids", "epochs", "outcomes", "results", "errors", "agains")
    do(sql.ADD_REPORTS, {**dict(zip(names, columns(reports, len(names)), strict=True)), "now": clock.now()})


def give_back(left: Sequence[Assignment], reason: str) -> int:
    """running → in_progress in a new epoch, for another message to carry; how many."""
    if not left:
        return 0
    given = {"ids": [one.run_id for one in left], "epochs": [one.epoch for one in left]}
    with transaction.atomic():
        back = rows(sql.GIVE_BACK, {**given, "now": clock.now(), "reason": reason})
        send((row[0], row[1], row[2]) for row in back)
    return len(back)


def _renew(left: Sequence[Assignment]) -> set[int]:
    given = {"ids": [one.run_id for one in left], "epochs": [one.epoch for one in left]}
    return {row[0] for row in rows(sql.KEEP, {**given, "lease": settings.SCHEDULE_LEASE_S})}


def _assignment(row: tuple[Any, ...]) -> Assignment:
    run_id, epoch, attempt, organization_id, schedule_id, trigger_at, number, _, name, payload, headers = row
    field: Any = Schedule._meta.get_field("headers")
    return Assignment(
        run_id, epoch, attempt, organization_id, schedule_id, name, trigger_at, number,
        json.loads(payload),
        field.from_db_value(headers, None, None) or {},
    )  # fmt: skip
