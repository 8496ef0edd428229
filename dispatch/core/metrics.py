"""What Prometheus scrapes at /metrics: counters that the slices raise, and gauges read from the servers at scrape.

Counters are per process. Gauges are functions that a slice registers with `gauge()`; each is asked at scrape time,
and one that fails is left out and counted, so that a dead Redis does not hide the database's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import structlog
from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

enqueue_failures = Counter(
    "dispatch_enqueue_failures_total", "Jobs that could not be put on a queue because Redis was gone.", ["queue"]
)
redis_rebuilds = Counter("dispatch_redis_rebuilds_total", "How often Redis was found empty and built anew.")
rq_jobs = Counter("dispatch_rq_jobs_total", "RQ jobs that this worker ran.", ["queue", "outcome"])
rq_job_seconds = Histogram("dispatch_rq_job_seconds", "How long an RQ job took.", ["queue"])
loop_steps = Counter("dispatch_loop_steps_total", "Steps of the dispatcher's loops.", ["loop", "outcome"])
loop_step_seconds = Histogram("dispatch_loop_step_seconds", "How long one step of a loop took.", ["loop"])
leadership_changes = Counter(
    "dispatch_leadership_changes_total", "Leaderships won and lost here.", ["name", "what"]
)
events_read = Counter("dispatch_events_read_total", "Events that a durable reader has applied.", ["reader"])
forgotten = Counter("dispatch_forgotten_total", "Rows deleted because they were too old, by kind.", ["what"])
gauge_failures = Counter("dispatch_gauge_failures_total", "Gauges that could not be read at scrape.", ["gauge"])

# What one gauge yields: label values and the figure.
Samples = Iterable[tuple[tuple[str, ...], float]]
_gauges: dict[str, tuple[str, tuple[str, ...], Callable[[], Samples]]] = {}


def gauge(
    name: str, documentation: str, labels: tuple[str, ...] = ()
) -> Callable[[Callable[[], Samples]], Callable[[], Samples]]:
    """Decorator: registers a function that yields (label values, figure) pairs when /metrics is scraped."""

    def register(read: Callable[[], Samples]) -> Callable[[], Samples]:
        _gauges[name] = (documentation, labels, read)
        return read

    return register


class _AtScrape(Collector):
    def collect(self) -> Iterator[Metric]:
        for name, (documentation, labels, read) in list(_gauges.items()):
            family = GaugeMetricFamily(name, documentation, labels=labels)
            try:
                for values, figure in read():
                    family.add_metric(values, figure)
            except Exception as error:  # one dead server must not hide the rest
                gauge_failures.labels(name).inc()
                log.warning("a gauge could not be read", gauge=name, error=str(error))
                continue
            yield family

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read servers."""
        return iter(())


REGISTRY.register(_AtScrape())
