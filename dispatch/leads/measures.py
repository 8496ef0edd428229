"""What the engine counts, for Prometheus. Gauges, which are read at scrape, are in `metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

scheduled = Counter("dispatch_leads_scheduled_total", "Leads put into the schedule, also those moved in it.")
unscheduled = Counter(
    "dispatch_leads_schedule_failures_total", "Times the schedule could not be told, for Redis was gone or empty."
)
promoted = Counter("dispatch_leads_promoted_total", "Due leads made ready.")
picked = Counter("dispatch_leads_picked_total", "Leads that a dialer took, by what became of them.", ["outcome"])
line_waits = Counter(
    "dispatch_leads_line_waits_total", "Times that ready leads found no line, by the reason.", ["reason"]
)
repairs = Counter("dispatch_leads_repairs_total", "What the reconcilers set right.", ["what"])
asked = Counter(
    "dispatch_leads_calls_asked_total", "Calls that the provider was asked for, by its answer.", ["answer"]
)
due_to_dial = Histogram(
    "dispatch_leads_due_to_dial_seconds",
    "From the moment a lead was due to the provider being asked.",
    buckets=_FAST,
)
line_wait = Histogram(
    "dispatch_leads_line_wait_seconds", "How long a dialer with ready leads waited for a line.", buckets=_FAST
)
tick = Histogram("dispatch_leads_promoter_tick_seconds", "How long one pass of the promoter took.", buckets=_FAST)
processing = Histogram(
    "dispatch_leads_claim_seconds", "How long one batch took from its lines to its commit.", buckets=_FAST
)
in_flight = Gauge(
    "dispatch_leads_in_flight",
    "Leads that dialers have taken and not yet settled.",
    multiprocess_mode="livesum",
)
backlog_at_rebuild = Gauge(
    "dispatch_leads_rebuild_backlog",
    "Overdue leads at the last rebuild of the schedule.",
    multiprocess_mode="mostrecent",
)
rebuild_window = Gauge(
    "dispatch_leads_rebuild_window_seconds", "Over how long they were spread.", multiprocess_mode="mostrecent"
)
rebuild_spread = Gauge(
    "dispatch_leads_rebuild_spread_seconds",
    "Between the first and the last of them as they were scheduled.",
    multiprocess_mode="mostrecent",
)


def observe_many(histogram: Histogram, values: Sequence[float]) -> None:
    """As `observe` for each: a batch would spend as long on counting itself as on one of its statements."""
    counts = Counts(bisect_left(histogram._upper_bounds, value) for value in values)
    for bucket, count in counts.items():
        histogram._buckets[bucket].inc(count)
    histogram._sum.inc(sum(values))
