"""Apply workers' reports to runs, once, and only for the current epoch.

A run has one report per epoch, and a report is applied only while its run is `running` in that epoch. Messages may
therefore be duplicated, late or out of order: a report of an older epoch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from dispatch.core import clock, events, fault_injection
from dispatch.core.db.prepared import columns, execute, fetch_all, prefer_index_plans
from dispatch.core.runtime import queues
from dispatch.schedules import metrics, sql
from dispatch.schedules.rules import outcomes
from dispatch.schedules.services.admission import free_slots
from dispatch.schedules.services.shards import EXECUTOR

# The executors are notified of retries that are due within this time.
SOON = timedelta(seconds=5)


def apply_reports(run_ids: Sequence[int], *, skip_locked: bool = False) -> int:
    """Apply the reports of these runs; return how many runs changed.

    The other reports were applied before or belong to another epoch. `skip_locked` skips locked runs instead of
    waiting for them.
    """
    now = clock.now()
    with transaction.atomic():
        prefer_index_plans()  # statistics mislead the planner right after a burst has filled a table
        ids = {"ids": list(run_ids)}
        if skip_locked:
            failures = dict(fetch_all(sql.TRY_LOCK_SCHEDULES_OF_REPORTS, ids))
            rows = fetch_all(sql.REPORTED_UNLOCKED, {**ids, "locked": list(failures)})
        else:
            failures = dict(fetch_all(sql.LOCK_SCHEDULES_OF_REPORTS, ids))
            rows = fetch_all(sql.REPORTED, ids)
        if not rows:
            return 0
        changes = [_change(row, now) for row in rows]
        names = ("ids", "statuses", "dues")
        execute(sql.APPLY, {**dict(zip(names, columns(changes, 3), strict=True)), "now": now})
        if deferred := [row[0] for row in rows if row[6] == outcomes.DEFERRED]:
            execute(sql.DELETE_DEFERRALS, {"ids": deferred})
        _count_failures(rows, changes, failures)
        release_waiting_runs([row[4] for row in rows if row[11] != "allow"], [row[15] for row in rows], now)
        if any(status == "retrying" and due and due < now + SOON for _, status, due in changes):
            queues.notify_loop(EXECUTOR)
        fault_injection.crash_point("schedules.apply.before_commit")
    for row in rows:
        metrics.ended.labels(row[5], row[6]).inc()
    return len(changes)


def release_waiting_runs(schedule_ids: Sequence[int], limit_ids: Iterable[int | None], now: datetime) -> None:
    """Make due what waited for runs that have ended: later runs of these schedules, and runs with these limits.

    Runs are locked before limits.
    """
    wake_waiting_runs(schedule_ids, now)
    free_slots(limit_ids, now)


def wake_waiting_runs(schedule_ids: Sequence[int], now: datetime, *, without: Sequence[int] = ()) -> None:
    """Make the next run that waits for an earlier run of each of these schedules due now, but not `without`."""
    given = {"schedules": list(schedule_ids), "without": list(without), "now": now}
    if schedule_ids and fetch_all(sql.WAKE_WAITING, given):
        queues.notify_loop(EXECUTOR)


def _change(row: tuple[Any, ...], now: Any) -> tuple[int, str, Any]:
    """Return (run id, new status, next due time).

    Runs of deleted schedules are not retried; runs of paused schedules wait.
    """
    ending = outcomes.ending_after(row[6], row[2], row[9], row[8], is_cancel_requested=row[14])
    status = ending.status
    if row[10] == "deleted" and status == "retrying":  # a deferred attempt was never made
        status = "cancelled" if row[6] == outcomes.DEFERRED else "failed"
    due = now + timedelta(seconds=ending.delay_s) if status == "retrying" and row[10] != "paused" else None
    return row[0], status, due


def _count_failures(
    rows: Sequence[tuple[Any, ...]], changes: Sequence[tuple[int, str, Any]], failures: dict[int, int]
) -> None:
    """Count consecutive runs that failed permanently.

    The first failure raises an alert, and the next success resolves it. Deleted schedules do neither.
    """
    before = dict(failures)
    for row, (run_id, status, _) in zip(rows, changes, strict=True):
        schedule_id = row[4]
        if schedule_id not in failures or row[10] == "deleted":
            continue
        details = {"name": row[12], "run_id": run_id}
        if status == "failed":
            if failures[schedule_id] == 0:
                events.append(
                    row[3], "schedule.failing", schedule_id, **details, error=row[7], attempts=row[2], work=row[5],
                    trigger_at=row[13].isoformat(),
                )  # fmt: skip
            failures[schedule_id] += 1
        elif status == "succeeded" and failures[schedule_id]:
            events.append(row[3], "schedule.recovered", schedule_id, **details)
            failures[schedule_id] = 0
    changed = [(key, count) for key, count in failures.items() if count != before[key]]
    if changed:
        execute(sql.COUNT_FAILURES, dict(zip(("ids", "failures"), columns(changed, 2), strict=True)))
