"""What Prometheus scrapes at /metrics: counters that the slices raise, and gauges read from the servers at scrape.

Counters are per process. Processes of one machine that were given the same folder in PROMETHEUS_MULTIPROC_DIR
write theirs there, and the one that is scraped tells the sum; a supervisor gives its children such a folder. A
process that stands alone tells its own at METRICS_PORT. Gauges are functions that a slice registers with
`gauge()`; each is asked at scrape time, and one that fails is left out and counted, so that a dead Redis does not
hide the database's figures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import structlog
from django.conf import settings
from django.core.management import CommandError
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from dispatch.core.environment import made_folder

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

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the library's own variable

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


class _Process(Collector):
    """What this process has counted."""

    def collect(self) -> Iterator[Metric]:
        yield from REGISTRY.collect()

    def describe(self) -> Iterator[Metric]:
        return iter(())


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


def told() -> bytes:
    """All that is to be told when somebody scrapes, in Prometheus' text format."""
    registry = _counters()
    registry.register(_AtScrape())
    return generate_latest(registry)


def _counters() -> CollectorRegistry:
    registry = CollectorRegistry()
    if os.environ.get(FOLDER):
        MultiProcessCollector(registry)
    else:
        registry.register(_Process())
    return registry


def new_folder(folder: Path) -> dict[str, str]:
    """Empties the folder, and answers what makes children write their counters there. Raises ImproperlyConfigured
    when it cannot be made."""
    shutil.rmtree(folder, ignore_errors=True)
    return {FOLDER: str(made_folder(folder))}


def collect(folder: Path) -> dict[str, str]:
    """For a supervisor that tells what its children count: as `new_folder`, unless somebody above it collects."""
    if os.environ.get(FOLDER):
        return {FOLDER: os.environ[FOLDER]}
    shared = new_folder(folder)
    os.environ.update(shared)
    return shared


def forget_process(pid: int, environment: Mapping[str, str]) -> None:
    """A child of that environment has ended: what it held at this moment counts no more; what it counted does."""
    if folder := environment.get(FOLDER):
        mark_process_dead(pid, folder)


def serve() -> None:
    """Tells what this process has counted at METRICS_PORT, if there is one, from a thread; the gauges are the web
    process' to tell. Raises CommandError when the port cannot be used."""
    if not settings.METRICS_PORT:
        return
    try:
        start_http_server(settings.METRICS_PORT, settings.METRICS_HOST, _counters())
    except (OSError, OverflowError) as error:
        raise CommandError(f"METRICS_PORT {settings.METRICS_PORT} cannot be used: {error}") from error
