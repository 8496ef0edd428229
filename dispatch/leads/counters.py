"""Define the counters and histograms of leads. `metrics` has the gauges, which are read at scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

scheduled = Counter("dispatch_leads_scheduled_total", "Leads added to the schedule or moved in it.")
unscheduled = Counter(
    "dispatch_leads_schedule_failures_total",
    ("Times the schedule was not updated because Redis was unavailable or flushed."),
)
promoted = Counter("dispatch_leads_promoted_total", "Due leads made ready.")
picked = Counter("dispatch_leads_picked_total", "Leads claimed by a dialer, by result.", ["outcome"])
line_waits = Counter(
    "dispatch_leads_line_waits_total", "Times that ready leads found no free line, by reason.", ["reason"]
)
repairs = Counter("dispatch_leads_repairs_total", "Corrections by the reconcilers.", ["what"])
# Their alerts see the first increment (`core.observability.metrics`).
picked.labels("error")
repairs.labels("dead_worker")
asked = Counter("dispatch_leads_calls_asked_total", "Calls requested from the provider, by response.", ["answer"])
due_to_dial = Histogram(
    "dispatch_leads_due_to_dial_seconds",
    "Time from a lead's due time until its call is requested.",
    buckets=_FAST,
)
line_wait = Histogram(
    "dispatch_leads_line_wait_seconds", "Time that a dialer with ready leads waited for a line.", buckets=_FAST
)
tick = Histogram("dispatch_leads_promoter_tick_seconds", "Duration of one promoter pass.", buckets=_FAST)
processing = Histogram(
    "dispatch_leads_claim_seconds", "Duration of one batch, from reserving lines to the commit.", buckets=_FAST
)
in_flight = Gauge(
    "dispatch_leads_in_flight",
    "Leads that dialers have claimed and not completed.",
    multiprocess_mode="livesum",
)
backlog_at_rebuild = Gauge(
    "dispatch_leads_rebuild_backlog",
    "Overdue leads at the last rebuild of the schedule.",
    multiprocess_mode="mostrecent",
)
rebuild_window = Gauge(
    "dispatch_leads_rebuild_window_seconds",
    "Time window over which they were spread.",
    multiprocess_mode="mostrecent",
)
rebuild_spread = Gauge(
    "dispatch_leads_rebuild_spread_seconds",
    "Time between the first and the last of them as scheduled.",
    multiprocess_mode="mostrecent",
)


def observe_many(histogram: Histogram, values: Sequence[float]) -> None:
    """Observe many values at once.

    Observing them separately would take a batch as long as one of its SQL statements.
    """
    counts = Counts(bisect_left(histogram._upper_bounds, value) for value in values)
    for bucket, count in counts.items():
        histogram._buckets[bucket].inc(count)
    histogram._sum.inc(sum(values))
