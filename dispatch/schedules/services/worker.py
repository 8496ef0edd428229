"""Execute runs in a worker: start them by compare-and-set, do the work, and report each outcome.

The outcome is stored as a RunReport before its id is put on the status queue. The queue makes the result prompt;
the row ensures that a lost message or a flushed Redis never causes a second call of a URL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction
from rq import Retry
from rq.timeouts import BaseTimeoutException

from dispatch.core import clock, fault_injection
from dispatch.core.db.errors import is_temporary
from dispatch.core.db.prepared import columns, execute, fetch_all
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.core.runtime.queues import rq_queue
from dispatch.schedules import kinds, metrics, sql
from dispatch.schedules.kinds.base import Assignment, LeaseCheck, Outcome, is_undecided
from dispatch.schedules.models import Schedule
from dispatch.schedules.rules.outcomes import FAILED
from dispatch.schedules.services.results import apply_reports, release_waiting_runs
from dispatch.schedules.services.run_messages import QueuedRun, enqueue_runs

log = structlog.get_logger(__name__)

APPLY = "dispatch.schedules.tasks.apply_status"
# Share of RQ's job time limit after which no further run is begun.
SHARE_OF_JOB = 0.5
# Pauses between tries to store reports while the database is unavailable.
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0
# The status worker retries its job after these times: together they are shorter than a lease.
STATUS_RETRIES_S = [1, 2, 5, 10, 20]

# [run id, epoch, outcome, result as JSON, error, retry delay in s]
Report = list[Any]


def work_runs(kind_name: str, pairs: Sequence[Sequence[int]]) -> int:
    """Execute those of these runs that are still in progress in the given epochs; return how many were executed.

    A run that has a later epoch, was started by another worker, was canceled or has ended is skipped.
    """
    given = start_runs(pairs)
    metrics.late.inc(len(pairs) - len(given))
    if not given:
        return 0
    fault_injection.crash_point("schedules.work.started")
    kind = kinds.get_kind(kind_name)
    seconds = settings.RQ_QUEUES[kind.queue]["DEFAULT_TIMEOUT"] * SHARE_OF_JOB
    unreadable = [
        (assignment, Outcome(FAILED, error=assignment.problem)) for assignment in given if assignment.problem
    ]
    given = [assignment for assignment in given if not assignment.problem]
    keep = LeaseCheck(given, _renew_leases, _find_canceled, seconds)
    done: dict[int, tuple[Assignment, Outcome]] = {}
    unreported: list[tuple[Assignment, Outcome]] = list(unreadable)
    stopped: Exception | None = None
    try:
        for yielded in kind.work(given, keep):
            if yielded is not None:
                done[yielded[0].run_id] = yielded
                unreported.append(yielded)
            elif unreported:
                batch, unreported = unreported, []
                report_outcomes(batch)
    except Exception as error:
        stopped = error
        unreported += _failures([assignment for assignment in keep.begun if assignment.run_id not in done], error)
        log.exception("work_stopped", kind=kind_name, runs=len(given), done=len(done))
    finally:
        fault_injection.crash_point("schedules.work.done")
        report_outcomes(unreported)
    begun = {assignment.run_id for assignment in keep.begun} | set(done)
    if stopped is None:
        return_runs(
            [assignment for assignment in given if assignment.run_id not in done], "Its worker ran out of time."
        )
    else:
        return_runs(
            [assignment for assignment in given if assignment.run_id not in begun],
            "Another run stopped its worker.",
        )
    if isinstance(stopped, BaseTimeoutException):
        raise stopped
    return len(done) + len(unreadable)


def _failures(broken: Sequence[Assignment], error: Exception) -> list[tuple[Assignment, Outcome]]:
    """Return outcomes for the runs that were in progress when an error stopped the work.

    A single run has failed. If the cause was the database, the job's time limit, or any one of several runs, their
    leases lapse: the reconciler establishes whether they were executed, and requeues each separately.
    """
    if len(broken) != 1 or is_undecided(error):
        return []
    return [(broken[0], Outcome(FAILED, error=f"{type(error).__name__}: {error}"))]


def start_runs(pairs: Sequence[Sequence[int]]) -> list[Assignment]:
    """Change the runs that are in progress in these epochs to running; return an assignment for each."""
    given = {"ids": [pair[0] for pair in pairs], "epochs": [pair[1] for pair in pairs]}
    now = clock.now()
    with transaction.atomic():
        rows = fetch_all(sql.START, {**given, "now": now, "lease": settings.SCHEDULE_LEASE_S})
    for row in rows:
        metrics.start_lag.observe(max(0.0, (now - row[7]).total_seconds()) if row[7] else 0.0)
    return [_assignment(row) for row in rows]


def report_outcomes(done: Sequence[tuple[Assignment, Outcome]]) -> None:
    """Store the outcomes of these runs and enqueue them for the status worker.

    If both PostgreSQL and Redis are unavailable, the lease lapses and the reconciler resolves the runs.
    """
    if not done:
        return
    reports = [
        [assignment.run_id, assignment.epoch, o.outcome, None if o.result is None else json.dumps(o.result),
         o.error[:500], o.again_in_s]
        for assignment, o in done
    ]  # fmt: skip
    try:
        _store_patiently(reports)
        unwritten: list[Report] = []
    except DatabaseError as error:
        log.warning("report_store_failed", error=str(error).strip())
        unwritten = reports
    fault_injection.crash_point("schedules.report.written")
    ids = [assignment.run_id for assignment, _ in done]
    try:
        rq_queue(settings.SCHEDULE_STATUS_QUEUE).enqueue_call(
            APPLY,
            args=(ids, unwritten),
            result_ttl=settings.RQ_QUEUES[settings.SCHEDULE_STATUS_QUEUE]["DEFAULT_RESULT_TTL"],
            failure_ttl=settings.RQ_FAILURE_TTL_S,
            retry=Retry(max=len(STATUS_RETRIES_S), interval=STATUS_RETRIES_S),
        )
    except REDIS_ERRORS as error:
        log.warning("status_queue_unavailable", runs=len(ids), error=str(error))
        if not unwritten:
            apply_reports(ids)
    fault_injection.crash_point("schedules.report.sent")


def _store_patiently(reports: Sequence[Report]) -> None:
    """Store reports, and retry while the database is unavailable, for a third of the lease.

    The other runs of this worker keep their leases. Without a stored report, the work would be done again.
    """
    deadline, pause_s = time.monotonic() + settings.SCHEDULE_LEASE_S / 3, FIRST_PAUSE_S
    while True:
        try:
            return store_reports(reports)
        except Exception as error:
            is_late = time.monotonic() + pause_s > deadline
            if is_late or connection.in_atomic_block or not is_temporary(error):
                raise
            log.warning("report_store_retried", again_in_s=pause_s, error=str(error).strip())
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
        connection.close_if_unusable_or_obsolete()


def store_reports(reports: Sequence[Report]) -> None:
    """Store reports. Duplicates and reports of another epoch are dropped."""
    names = ("ids", "epochs", "outcomes", "results", "errors", "agains")
    execute(sql.ADD_REPORTS, {**dict(zip(names, columns(reports, len(names)), strict=True)), "now": clock.now()})


def return_runs(left: Sequence[Assignment], reason: str) -> int:
    """Requeue running runs that were not begun, in a new epoch; return how many.

    Runs of a deleted schedule, and runs whose cancellation was requested, are canceled. The runs that waited for
    them are due now.
    """
    if not left:
        return 0
    given = {
        "ids": [assignment.run_id for assignment in left],
        "epochs": [assignment.epoch for assignment in left],
    }
    now = clock.now()
    with transaction.atomic():
        requeued = fetch_all(sql.RETURN_RUNS, {**given, "now": now, "reason": reason})
        again = [QueuedRun(*row[:4]) for row in requeued if row[4] == "in_progress"]
        enqueue_runs(again)
        ended = [row for row in requeued if row[4] == "cancelled"]
        release_waiting_runs([row[5] for row in ended], [row[6] for row in ended], now)
    return len(again)


def _find_canceled(run_ids: Sequence[int]) -> set[int]:
    """Return which of these runs someone requested to cancel."""
    return {row[0] for row in fetch_all(sql.CANCEL_REQUESTED, {"ids": list(run_ids)})}


def _renew_leases(left: Sequence[Assignment]) -> set[int]:
    given = {
        "ids": [assignment.run_id for assignment in left],
        "epochs": [assignment.epoch for assignment in left],
    }
    return {row[0] for row in fetch_all(sql.RENEW_LEASES, {**given, "lease": settings.SCHEDULE_LEASE_S})}


def _assignment(row: tuple[Any, ...]) -> Assignment:
    run_id, epoch, attempt, organization_id, schedule_id, trigger_at, number, _, name, payload, headers, since = (
        row
    )
    field: Any = Schedule._meta.get_field("headers")
    problem = ""
    read: dict[str, str] = {}
    try:
        read = field.from_db_value(headers, None, None) or {}
    except (ImproperlyConfigured, ValueError) as error:
        problem = f"Its headers cannot be read: {error}"
        log.error("schedule_unreadable", schedule=schedule_id, error=str(error))
    return Assignment(
        run_id, epoch, attempt, organization_id, schedule_id, name, trigger_at, number, json.loads(payload), read,
        problem, since,
    )  # fmt: skip
