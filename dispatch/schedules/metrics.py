"""The schedules' figures at /metrics."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from dispatch.core import clock
from dispatch.core.metrics import Samples, gauge
from dispatch.schedules.models import SHARDS, BulkImport, Run, Schedule

claimed = Counter("dispatch_schedules_claimed_total", "Due runs by what the executor did.", ["what"])
ended = Counter("dispatch_schedules_attempts_total", "Attempts of runs by what came of them.", ["kind", "outcome"])
start_lag = Histogram(
    "dispatch_schedules_start_lag_seconds",
    "From when a run was due to when a worker took it.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600),
)
late = Counter("dispatch_schedules_late_messages_total", "Messages to workers that came late or twice.")
repaired = Counter("dispatch_schedules_repaired_total", "What the reconciler repaired.", ["what"])


@gauge("dispatch_schedules_open_runs", "Runs that were taken and have not ended.", ("kind", "status"))
def open_runs() -> Samples:
    from dispatch.core.statements import rows
    from dispatch.schedules import sql

    return [((kind, status), count) for kind, status, count in rows(sql.OPEN_RUNS)]


@gauge("dispatch_schedules_oldest_due_seconds", "How long the run that is due longest has waited to be taken.")
def oldest_due() -> Samples:
    from dispatch.core.statements import rows
    from dispatch.schedules import sql

    first = rows(sql.NEXT_DUE, {"shards": list(range(SHARDS))})[0][0]
    return [((), max(0.0, (clock.now() - first).total_seconds()) if first else 0.0)]


@gauge("dispatch_schedules_oldest_running_seconds", "How long the run that is running longest has been.")
def oldest_running() -> Samples:
    first = (
        Run.objects.filter(status="running").order_by("lease_until").values_list("started_at", flat=True).first()
    )
    return [((), max(0.0, (clock.now() - first).total_seconds()) if first else 0.0)]


@gauge("dispatch_schedules_shards_without_executor", "Shards that no executor holds.")
def unheld_shards() -> Samples:
    from dispatch.core.statements import rows
    from dispatch.schedules import sql

    return [((), float(rows(sql.UNHELD_SHARDS, {"shards": SHARDS})[0][0]))]


@gauge("dispatch_schedules_failing", "Schedules whose last run failed for good.")
def failing() -> Samples:
    return [((), Schedule.objects.filter(failures__gt=0, status="active").count())]


@gauge("dispatch_schedules_open_bulk_creations", "Bulk creations that are not done.")
def open_bulk() -> Samples:
    return [((), BulkImport.objects.filter(status__in=["received", "running"]).count())]
