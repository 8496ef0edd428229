"""Run past occurrences: those of a range, or those that a missed or skipped run stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.runtime import queues
from dispatch.schedules.models import Run, RunStatus, Schedule
from dispatch.schedules.rules import recurrence
from dispatch.schedules.services.schedules import (
    CANNOT_RUN,
    NotInThisStatus,
    check_status_not_in,
    check_waiting_runs,
    lock_schedule,
)
from dispatch.schedules.services.shards import EXECUTOR

MAX_BACKFILL = 1000
_INSTANT = timedelta(microseconds=1)
# Times near the beginning of the calendar cannot be converted between zones.
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Backfill:
    """The occurrences of a range in order, at most MAX_BACKFILL. `is_whole`: False if there are more."""

    times: list[datetime]
    is_whole: bool


def preview_backfill(schedule: Schedule, since: datetime, until: datetime) -> Backfill:
    """Return the past occurrences from `since` to `until`, both included, by the schedule's timing as it is now.

    Its end and its maximum number of occurrences do not apply: they limit only what runs automatically.
    """
    since, until = max(since, _EARLIEST), min(until, clock.now())
    if schedule.trigger_at is not None:
        times = [schedule.trigger_at] if since <= schedule.trigger_at <= until else []
        return Backfill(times, True)
    timing = replace(schedule.timing, ends_at=None, max_occurrences=None)
    found = takewhile(lambda at: at <= until, recurrence.occurrences(timing, since - _INSTANT))
    times = list(islice(found, MAX_BACKFILL + 1))
    return Backfill(times[:MAX_BACKFILL], len(times) <= MAX_BACKFILL)


def run_range(
    schedule_id: int, since: datetime, until: datetime, *, actor: Actor, version: int | None = None, note: str = ""
) -> list[Run]:
    """Add a manual run, due now, for each past occurrence from `since` to `until`, in their order.

    Occurrences that have run are run again. If overlap is not allowed, the runs wait for each other. Raises
    Conflict if there are more than MAX_BACKFILL, or too many wait, and NotInThisStatus if the schedule is deleted.
    """
    with transaction.atomic():
        schedule = lock_schedule(schedule_id, version)
        check_status_not_in(schedule, (Schedule.Status.DELETED,), CANNOT_RUN)
        found = preview_backfill(schedule, since, until)
        if not found.is_whole:
            raise Conflict(
                _("More than {most} occurrences are in this range. Choose a shorter one.").format(
                    most=f"{MAX_BACKFILL:,}"
                ),
                code="too_many",
            )
        return _add_runs(schedule, found.times, actor, note)


def run_missed(run_id: int, *, actor: Actor, note: str = "") -> list[Run]:
    """Add a manual run for each occurrence that a missed or skipped run stands for. Raises as `run_range`."""
    run = Run.objects.get(pk=run_id)
    if run.status not in (RunStatus.MISSED, RunStatus.SKIPPED):
        raise NotInThisStatus(
            _("This run is {status}. Only missed and skipped occurrences can be run.").format(
                status=_(run.get_status_display()).lower()
            ),
            run_status=str(run.status),
        )
    if run.stretch_last_at is not None:
        return run_range(run.schedule_id, run.trigger_at, run.stretch_last_at, actor=actor, note=note)
    with transaction.atomic():
        schedule = lock_schedule(run.schedule_id, None)
        check_status_not_in(schedule, (Schedule.Status.DELETED,), CANNOT_RUN)
        return _add_runs(schedule, [run.trigger_at], actor, note)


def _add_runs(schedule: Schedule, times: Sequence[datetime], actor: Actor, note: str) -> list[Run]:
    if not times:
        return []
    check_waiting_runs(schedule, len(times))
    now = clock.now()
    runs = Run.objects.bulk_create(
        Run(
            organization_id=schedule.organization_id,
            schedule=schedule,
            kind=schedule.kind,
            shard=schedule.shard,
            concurrency_limit_id=schedule.concurrency_limit_id,
            trigger_at=at,
            due_at=now,
            created_at=now,
        )
        for at in times
    )
    events.append(
        schedule.organization_id, "schedule.backfilled", schedule.pk, actor=actor, name=schedule.name,
        runs=len(runs), since=times[0].isoformat(), until=times[-1].isoformat(), note=note,
    )  # fmt: skip
    queues.notify_loop(EXECUTOR)
    return runs
