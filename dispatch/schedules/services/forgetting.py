"""Runs that are old are forgotten, and schedules that have ended when none of their runs is left."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef

from dispatch.schedules.models import Run, Schedule

RUN_DAYS = 90
SCHEDULE_DAYS = 90


def forget_runs(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes up to `limit` runs that ended before `before`, with their reports."""
    old = Run.objects.of(organization_id).filter(ended_at__lt=before).order_by("ended_at")
    ids = list(old.values_list("pk", flat=True)[:limit])
    Run.objects.filter(pk__in=ids).delete()
    return len(ids)


def forget_schedules(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes up to `limit` schedules that were last changed before `before`, run no more and have no runs. One
    that somebody runs by hand just now is passed over."""
    over = Schedule.objects.of(organization_id).filter(
        ~Exists(Run.objects.filter(schedule=OuterRef("pk"))), status__in=Schedule.OVER, changed_at__lt=before
    )
    with transaction.atomic():
        # Whoever would give one of these a run waits for its row, and finds it gone; those that have one are kept.
        locked = over.order_by("changed_at").select_for_update(skip_locked=True, of=("self",))
        ids = list(locked.values_list("pk", flat=True)[:limit])
        over.filter(pk__in=ids).delete()
    return len(ids)
