"""What the dispatcher process runs for the schedules."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.loops import Loop, Service
from dispatch.schedules import executor
from dispatch.schedules.services import bulk, reconciling, shards


def reconcile() -> float | None:
    """Finds what got lost; again at once while there is much of it."""
    bulk.send_forgotten()
    return 0.0 if reconciling.reconcile() >= reconciling.BATCH else None


LOOPS: list[Loop | Service] = [
    # Every process has these two: the shards are shared, the executor takes what is due in this one's.
    Service("schedules_shards", shards.keep),
    Loop(shards.EXECUTOR, executor.step, interval_s=settings.SCHEDULE_POLL_INTERVAL_S),
    Loop("schedules_reconciler", reconcile, interval_s=settings.SCHEDULE_RECONCILE_INTERVAL_S, elected=True),
]
