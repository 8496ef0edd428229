"""Delete old runs, and ended schedules without runs."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef

from dispatch.schedules.models import Run, Schedule

RUN_DAYS = 90
SCHEDULE_DAYS = 90


def delete_expired_runs(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` runs that ended before `before`, with their reports."""
    old = Run.objects.of(organization_id).filter(ended_at__lt=before).order_by("ended_at")
    ids = list(old.values_list("pk", flat=True)[:limit])
    Run.objects.filter(pk__in=ids).delete()
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
