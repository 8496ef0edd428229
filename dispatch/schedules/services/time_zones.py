"""Compute the next runs again after the rules of a time zone changed.

A waiting run stores its time as a moment. When a government changes a zone's rules and the installed time zone
data includes the change, the moment is no longer the wall-clock time of the schedule.
"""

from __future__ import annotations

import hashlib
import zoneinfo
from datetime import timedelta
from functools import cache
from importlib import resources
from pathlib import Path

import structlog
from django.db import transaction

from accounts.models import time_zones
from dispatch.core import clock, events
from dispatch.core.db.isolation import FailureRule, run_each
from dispatch.core.runtime import queues
from dispatch.schedules.models import Run, RunStatus, Schedule, ZoneRules
from dispatch.schedules.rules import recurrence
from dispatch.schedules.services.shards import EXECUTOR

log = structlog.get_logger(__name__)

INTERVAL_S = 600.0
# Schedules read in one step.
BATCH = 500
# New rules move a time by at most this much, except where a zone crosses the date line.
_LARGEST_SHIFT = timedelta(hours=3)
_COMING = (Schedule.Status.ACTIVE, Schedule.Status.PAUSED)


class ZoneWalk:
    """Walk over all schedules whose zone has new rules, one batch per step. A new process begins at the start."""

    def __init__(self) -> None:
        self._after = 0
        self._failed: set[int] = set()

    def step(self) -> float | None:
        """Check a batch of schedules; return 0 while more are left, None when the rules are up to date."""
        digests = zone_digests()
        known = dict(ZoneRules.objects.values_list("zone", "digest"))
        new = [ZoneRules(zone=zone, digest=digest) for zone, digest in digests.items() if zone not in known]
        ZoneRules.objects.bulk_create(new, ignore_conflicts=True)
        changed = {zone for zone, digest in digests.items() if known.get(zone, digest) != digest}
        if not changed:
            self._after = 0
            return None
        rows = Schedule.objects.filter(pk__gt=self._after, status__in=_COMING, trigger_at=None).order_by("pk")
        batch = list(rows.values_list("pk", "time_zone", "unit")[:BATCH])
        ids = [pk for pk, zone, unit in batch if zone in changed and unit not in recurrence.ELAPSED_S]
        moved = run_each(move_next_run, ids, event="next_run_not_moved", rule=FailureRule[int](self._failed.add))
        if moved:
            log.info("next_runs_moved", zones=sorted(changed), runs=moved)
        if len(batch) == BATCH:
            self._after = batch[-1][0]
            return 0.0
        self._after = 0
        if self._failed:  # locked, for example: the next walk tries them again
            self._failed.clear()
            return None
        for zone in changed:
            ZoneRules.objects.filter(zone=zone).update(digest=digests[zone])
        return None


walk = ZoneWalk()


@cache
def zone_digests() -> dict[str, str]:
    """Return zone → digest of its rules, as this process has read them."""
    return {zone: hashlib.sha256(rules_of(zone)).hexdigest() for zone in time_zones()}


def move_next_run(
    schedule_id: int, reason: str = "The rules of its time zone changed.", *, only_from_now: bool = False
) -> bool:
    """Compute the time of the schedule's next run again; return whether it moved.

    A run that is due, or that waits for an earlier run, stays. `only_from_now`: times that have passed are
    not made up for.
    """
    now = clock.now()
    with transaction.atomic():
        readable = Schedule.objects.defer("headers", "payload")  # headers may be under a lost key
        schedule = readable.select_for_update(no_key=True).get(pk=schedule_id)
        waiting = Run.objects.filter(schedule=schedule, status=RunStatus.SCHEDULED, waiting_for="")
        run = waiting.exclude(number=None).select_for_update(no_key=True).first()
        if run is None or schedule.status not in _COMING or run.trigger_at <= now:
            return False
        # When its next run was created, or the timing changed, all earlier occurrences had been run or skipped, or
        # had been excluded by a calendar that may have changed since.
        after = now if only_from_now else max(run.created_at, schedule.changed_at)
        if schedule.exclude_calendars:
            after = max(after, now - _LARGEST_SHIFT)
        at = recurrence.next_after(schedule.timing, after, schedule.taken)
        if at is None or at == run.trigger_at:
            return False
        before, schedule.next_at = run.trigger_at, at
        schedule.save(update_fields=["next_at"])
        run.trigger_at = at
        run.due_at = None if schedule.status == Schedule.Status.PAUSED else schedule.due_at(at)
        run.save(update_fields=["trigger_at", "due_at"])
        events.append(
            schedule.organization_id, "schedule.moved", schedule.pk, name=schedule.name,
            before=before.isoformat(), after=at.isoformat(), reason=reason,
        )  # fmt: skip
        queues.notify_loop(EXECUTOR)
    return True


def rules_of(zone: str) -> bytes:
    """Read the zone's file, as zoneinfo does: from the system, or from the tzdata package."""
    for folder in zoneinfo.TZPATH:
        path = Path(folder) / zone
        if path.is_file():
            return path.read_bytes()
    return resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).read_bytes()
