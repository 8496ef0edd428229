"""Recover lost work from PostgreSQL alone: lost messages to workers and the status queue, and dead workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.core.db.errors import is_temporary
from dispatch.core.db.prepared import execute, fetch_all
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.core.runtime.queues import read_queue
from dispatch.schedules import kinds, metrics, sql
from dispatch.schedules.kinds.base import Assignment, Outcome
from dispatch.schedules.models import Run
from dispatch.schedules.rules.outcomes import FAILED, MAX_LAPSES, SUCCEEDED
from dispatch.schedules.services.admission import admit_overlooked
from dispatch.schedules.services.results import apply_reports, release_waiting_runs
from dispatch.schedules.services.run_messages import QueuedRun, enqueue_runs
from dispatch.schedules.services.worker import store_reports

log = structlog.get_logger(__name__)

BATCH = 500
# The time that the status queue may take to apply a report.
STATUS_GRACE_S = 5.0
# Tolerance for the age of a queue's oldest message: clocks differ, and a chunk leaves the queue before it starts.
MARGIN_S = 5.0


def reconcile_runs() -> int:
    """Run one pass; return the number of rows repaired.

    A failing step does not stop the others; its error is raised afterwards.
    """
    done, errors = 0, []
    for step in (apply_unapplied, find_lapsed, send_lost, admit_overlooked):
        try:
            done += step()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return done


def apply_unapplied() -> int:
    """Apply reports whose message to the status queue is late or lost."""
    before = clock.now() - timedelta(seconds=STATUS_GRACE_S)
    ids = [row[0] for row in fetch_all(sql.UNAPPLIED, {"before": before, "limit": BATCH})]
    if not ids:
        return 0
    try:
        done = apply_reports(ids, skip_locked=True)
    except Exception as error:
        if is_temporary(error):
            raise
        done = sum(map(_apply_alone, ids))
    metrics.repaired.labels("status").inc(done)
    return done


def _apply_alone(run_id: int) -> int:
    try:
        return apply_reports([run_id], skip_locked=True)
    except Exception as error:
        if is_temporary(error):
            raise
        log.exception("report_not_applied", run=run_id)
        return 0


def find_lapsed() -> int:
    """Resolve runs whose worker died.

    If the object that the run creates exists (found by the run's idempotency key), the run succeeded. Otherwise
    it is requeued in the same attempt. If a second worker dies, the run fails.
    """
    lapsed = fetch_all(sql.LAPSED, {"limit": BATCH, "kinds": [kind.name for kind in kinds.all_kinds()]})
    if not lapsed:
        return 0
    results, unknown = _results([row[0] for row in lapsed])
    lapsed = [row for row in lapsed if row[0] not in unknown]
    if not lapsed:
        return 0
    done = [row for row in lapsed if row[0] in results]
    died_twice = [row for row in lapsed if row[0] not in results and row[4] >= MAX_LAPSES]
    _report([(row, Outcome(SUCCEEDED, results[row[0]])) for row in done])
    _report([(row, Outcome(FAILED, error="Two workers stopped while executing it.")) for row in died_twice])
    resolved = {row[0] for row in (*done, *died_twice)}
    again = [row for row in lapsed if row[0] not in resolved]
    if again:
        now = clock.now()
        with transaction.atomic():
            given = {"ids": [row[0] for row in again], "epochs": [row[1] for row in again], "now": now}
            requeued_rows = fetch_all(
                sql.REQUEUE_LAPSED, {**given, "reason": "Its worker stopped while executing it."}
            )
            enqueue_runs((QueuedRun(*row[:4]) for row in requeued_rows if row[4] == "in_progress"), alone=True)
            ended = [row for row in requeued_rows if row[4] == "cancelled"]
            release_waiting_runs([row[5] for row in ended], [row[6] for row in ended], now)
    metrics.repaired.labels("lapsed").inc(len(lapsed))
    log.warning("runs_lapsed", runs=len(lapsed), succeeded=len(done), requeued=len(again))
    return len(lapsed)


def send_lost() -> int:
    """Resend runs that no worker started and whose message is in no queue.

    The epoch stays the same, so of two copies only the first starts the run.
    """
    now = clock.now()
    befores: dict[str, datetime] = {}
    for kind in kinds.all_kinds():
        try:
            seen = read_queue(kind.queue, now)
        except REDIS_ERRORS:
            return 0  # nothing could be enqueued either
        stale = settings.SCHEDULE_STALE_AFTER_S + (seen.oldest_s + MARGIN_S if seen.waiting else 0.0)
        befores[kind.name] = now - timedelta(seconds=stale)
    return _resend(befores, now)


def resend_all() -> None:
    """Resend the messages of all runs in progress after Redis lost its data."""
    now = clock.now()
    while _resend({kind.name: now for kind in kinds.all_kinds()}, now) == BATCH:
        pass


def _resend(befores: dict[str, datetime], now: datetime) -> int:
    given = {"kinds": list(befores), "befores": list(befores.values()), "limit": BATCH}
    with transaction.atomic():
        lost = fetch_all(sql.LOST, given)
        if not lost:
            return 0
        execute(sql.MARK_RESENT, {"ids": [row[0] for row in lost], "now": now})
        enqueue_runs(QueuedRun(*row[:4]) for row in lost if not row[4])
        enqueue_runs((QueuedRun(*row[:4]) for row in lost if row[4]), alone=True)
    metrics.repaired.labels("message").inc(len(lost))
    log.warning("run_messages_lost", runs=len(lost))
    return len(lost)


def _results(run_ids: Sequence[int]) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """Return run id → result, where the kinds can find one, and the ids of runs whose kind failed to search."""
    by_kind: dict[str, list[Assignment]] = {}
    found_runs = Run.objects.filter(pk__in=run_ids).select_related("schedule")
    for run in found_runs.defer("schedule__headers", "schedule__payload"):
        by_kind.setdefault(run.kind, []).append(
            Assignment(
                run.pk, run.epoch, run.attempt, run.organization_id, run.schedule_id, run.schedule.name,
                run.trigger_at, run.number, {},
            )
        )  # fmt: skip
    results: dict[int, dict[str, Any]] = {}
    unknown: set[int] = set()
    for name, given in by_kind.items():
        try:
            results |= kinds.get_kind(name).find(given)
        except Exception as error:
            if is_temporary(error):
                raise
            log.exception("results_not_found", kind=name)
            unknown |= {assignment.run_id for assignment in given}
    return results, unknown


def _report(ended: Sequence[tuple[tuple[Any, ...], Outcome]]) -> None:
    if ended:
        store_reports(
            [
                [row[0], row[1], o.outcome, None if o.result is None else json.dumps(o.result), o.error, None]
                for row, o in ended
            ]
        )
        apply_reports([row[0] for row, _ in ended], skip_locked=True)
