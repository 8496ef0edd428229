"""Define the metrics of schedules at /metrics."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from dispatch.core import clock
from dispatch.core.observability.metrics import Samples, gauge
from dispatch.schedules.models import SHARDS, BulkImport, Run, Schedule

claimed = Counter("dispatch_schedules_claimed_total", "Due runs, by the executor's decision.", ["what"])
ended = Counter("dispatch_schedules_attempts_total", "Attempts of runs, by result.", ["kind", "outcome"])
start_lag = Histogram(
    "dispatch_schedules_start_lag_seconds",
    "Delay from a run's due time until a worker started it.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600),
)
late = Counter("dispatch_schedules_late_messages_total", "Messages to workers that were late or duplicates.")
repaired = Counter("dispatch_schedules_repaired_total", "Rows repaired by the reconciler.", ["what"])


@gauge("dispatch_schedules_open_runs", "Runs claimed but not ended.", ("kind", "status"))
def open_runs() -> Samples:
    """Count the runs that are claimed and have not ended, by kind and status."""
    from dispatch.core.db.prepared import fetch_all
    from dispatch.schedules import sql

    return [((kind, status), count) for kind, status, count in fetch_all(sql.OPEN_RUNS)]


@gauge("dispatch_schedules_oldest_due_seconds", "Waiting time of the oldest due run.")
def oldest_due() -> Samples:
    """Return how long the oldest due run has waited, in seconds."""
    from dispatch.core.db.prepared import fetch_all
    from dispatch.schedules import kinds, sql

    names = [kind.name for kind in kinds.all_kinds()]
    first = fetch_all(sql.NEXT_DUE, {"shards": list(range(SHARDS)), "kinds": names})[0][0]
    return [((), max(0.0, (clock.now() - first).total_seconds()) if first else 0.0)]


@gauge("dispatch_schedules_oldest_running_seconds", "Age of the longest-running run.")
def oldest_running() -> Samples:
    """Return how long the run with the oldest lease has been running, in seconds."""
    first = (
        Run.objects.filter(status="running").order_by("lease_until").values_list("started_at", flat=True).first()
    )
    return [((), max(0.0, (clock.now() - first).total_seconds()) if first else 0.0)]


@gauge("dispatch_schedules_oldest_slot_wait_seconds", "Waiting time of the oldest run that waits for a slot.")
def oldest_slot_wait() -> Samples:
    """Return how long the oldest run has waited for a slot of its concurrency limit, in seconds."""
    from dispatch.core.db.prepared import fetch_all
    from dispatch.schedules import limits_sql

    first = fetch_all(limits_sql.OLDEST_WAIT)[0][0]
    return [((), max(0.0, (clock.now() - first).total_seconds()) if first else 0.0)]


@gauge("dispatch_schedules_shards_without_executor", "Shards without an executor.")
def unheld_shards() -> Samples:
    """Count the shards that no executor holds."""
    from dispatch.core.db.prepared import fetch_all
    from dispatch.schedules import sql

    return [((), float(fetch_all(sql.UNHELD_SHARDS, {"shards": SHARDS})[0][0]))]


@gauge("dispatch_schedules_failing", "Schedules whose last run failed permanently.")
def failing() -> Samples:
    """Count the active schedules whose last run failed permanently."""
    return [((), Schedule.objects.filter(failures__gt=0, status="active").count())]


@gauge("dispatch_schedules_open_bulk_creations", "Bulk imports in progress.")
def open_bulk() -> Samples:
    """Count the bulk imports in progress."""
    return [((), BulkImport.objects.filter(status__in=["received", "running"]).count())]
