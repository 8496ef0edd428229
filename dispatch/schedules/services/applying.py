"""The status worker's part: what workers reported becomes the runs' status, once, and of the present epoch only.

A run has one report per epoch, and a report is applied only while its run is `running` in that epoch. So messages
may be doubled, late, or arrive in any order: one of an older epoch finds a newer one there and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction

from dispatch.core import clock, events, faults, queues
from dispatch.core.statements import by_index, columns, do, rows
from dispatch.schedules import metrics, sql
from dispatch.schedules.rules import outcomes
from dispatch.schedules.services.shards import EXECUTOR

# An executor that sleeps longer than until then is woken.
SOON = timedelta(seconds=5)


def apply(run_ids: Sequence[int]) -> int:
    """Applies what is reported of these runs; how many changed. The rest was applied before, or is of another
    epoch."""
    now = clock.now()
    with transaction.atomic():
        by_index()  # reports come in bursts: joins would read whole what was empty a moment ago
        ids = {"ids": list(run_ids)}
        failures = dict(rows(sql.LOCK_SCHEDULES_OF_REPORTS, ids))
        found = rows(sql.REPORTED, ids)
        if not found:
            return 0
        changes = [_change(row, now) for row in found]
        names = ("ids", "statuses", "dues")
        do(sql.APPLY, {**dict(zip(names, columns(changes, 3), strict=True)), "now": now})
        _count_failures(found, changes, failures)
        waiting = [row[4] for row in found if row[11] == "skip"]
        if waiting and rows(sql.WAKE_WAITING, {"schedules": waiting, "now": now}):
            queues.wake(EXECUTOR)
        if any(status == "retrying" and due and due < now + SOON for _, status, due in changes):
            queues.wake(EXECUTOR)
        faults.point("schedules.apply.before_commit")
    for row in found:
        metrics.ended.labels(row[5], row[6]).inc()
    return len(changes)


def _change(row: tuple[Any, ...], now: Any) -> tuple[int, str, Any]:
    """(run id, its status now, when it is due again). What is deleted is not tried again; what is paused waits."""
    ending = outcomes.after(row[6], row[2], row[9], row[8])
    status = "failed" if row[10] == "deleted" and ending.status == "retrying" else ending.status
    due = now + timedelta(seconds=ending.delay_s) if status == "retrying" and row[10] != "paused" else None
    return row[0], status, due


def _count_failures(
    found: Sequence[tuple[Any, ...]], changes: Sequence[tuple[int, str, Any]], failures: dict[int, int]
) -> None:
    """Counts runs that failed for good, in a row. The first one asks for a person, the next success says that all
    is well again; of a schedule that nobody wants any more neither is told."""
    before = dict(failures)
    for row, (run_id, status, _) in zip(found, changes, strict=True):
        schedule_id = row[4]
        if schedule_id not in failures or row[10] == "deleted":
            continue
        told = {"name": row[12], "run_id": run_id}
        if status == "failed":
            if failures[schedule_id] == 0:
                events.append(
                    row[3], "schedule.failing", schedule_id, **told, error=row[7], attempts=row[2], work=row[5],
                    trigger_at=row[13].isoformat(),
                )  # fmt: skip
            failures[schedule_id] += 1
        elif status == "succeeded" and failures[schedule_id]:
            events.append(row[3], "schedule.recovered", schedule_id, **told)
            failures[schedule_id] = 0
    changed = [(key, count) for key, count in failures.items() if count != before[key]]
    if changed:
        do(sql.COUNT_FAILURES, dict(zip(("ids", "failures"), columns(changed, 2), strict=True)))
