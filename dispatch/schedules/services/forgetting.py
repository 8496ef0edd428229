"""Runs that are old are forgotten."""

from __future__ import annotations

from datetime import datetime

from dispatch.schedules.models import Run

RUN_DAYS = 90


def forget_runs(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes up to `limit` runs that ended before `before`, with their reports."""
    old = Run.objects.of(organization_id).filter(ended_at__lt=before).order_by("ended_at")
    ids = list(old.values_list("pk", flat=True)[:limit])
    Run.objects.filter(pk__in=ids).delete()
    return len(ids)
