"""Define the loops of schedules in the dispatcher process."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.redis.client import QUEUES
from dispatch.core.runtime.loops import Loop, Service
from dispatch.schedules import sql
from dispatch.schedules.services import bulk_import, calendars, executor, reconciliation, shards, time_zones

# How often exclusion calendars that are due for a refresh are looked for.
CALENDARS_S = 60.0


def reconcile() -> float | None:
    """Recover lost work; return 0 while more is left."""
    bulk_import.enqueue_stalled()
    return 0.0 if reconciliation.reconcile_runs() >= reconciliation.BATCH else None


LOOPS: list[Loop | Service] = [
    # Every dispatcher runs these two: it holds its share of the shards, and its executor claims their due runs.
    Service("schedules_shards", shards.renew_shards_forever),
    Loop(shards.EXECUTOR, executor.run_executor_step, interval_s=settings.SCHEDULE_POLL_INTERVAL_S),
    Loop(
        "schedules_reconciler",
        reconcile,
        interval_s=settings.SCHEDULE_RECONCILE_INTERVAL_S,
        elected=True,
        needs_redis=QUEUES,
        due=sql.MAY_NEED_RECONCILIATION,
    ),
    Loop("schedules_time_zones", time_zones.walk.step, interval_s=time_zones.INTERVAL_S, elected=True),
    Loop("schedules_calendars", calendars.enqueue_due, interval_s=CALENDARS_S, elected=True, needs_redis=QUEUES),
]
