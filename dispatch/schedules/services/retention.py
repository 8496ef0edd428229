"""Delete old runs, and ended schedules without runs."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef

from dispatch.core.privacy import event_retention
from dispatch.schedules.models import Run, Schedule

RUN_DAYS = 90
SCHEDULE_DAYS = 90
EVENT_DAYS = 90


def delete_expired_runs(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` runs that ended before `before`, with their reports and the system's events about them.

    Each run has four or more events, which are useful only beside the run. They are kept for EVENT_DAYS at least,
    even if the organization keeps runs for a shorter time; then they expire with the rest of the event log.
    """
    old = Run.objects.of(organization_id).filter(ended_at__lt=before).order_by("ended_at")
    ids = list(old.values_list("pk", flat=True)[:limit])
    with transaction.atomic():
        Run.objects.filter(pk__in=ids).delete()
        event_retention.delete_system_events(organization_id, "run", ids, EVENT_DAYS)
    return len(ids)


def delete_expired_schedules(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` ended schedules without runs that were last changed before `before`.

    A schedule that is locked, such as by a concurrent manual run, is skipped.
    """
    over = Schedule.objects.of(organization_id).filter(
        ~Exists(Run.objects.filter(schedule=OuterRef("pk"))), status__in=Schedule.OVER, changed_at__lt=before
    )
    with transaction.atomic():
        # A concurrent insert of a run waits for these row locks and then fails. Schedules that have runs are kept.
        locked = over.order_by("changed_at").select_for_update(skip_locked=True, of=("self",))
        ids = list(locked.values_list("pk", flat=True)[:limit])
        over.filter(pk__in=ids).delete()
    return len(ids)
