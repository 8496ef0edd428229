"""Export metrics to Prometheus at /metrics: counters of the slices, and gauges.

Counters are per process. Processes of one machine with the same folder in PROMETHEUS_MULTIPROC_DIR write their
counters there, and the scraped process exports the sum; a supervisor gives its children such a folder. A
standalone process exports its own counters at METRICS_PORT. Gauges are functions that a slice registers with
`gauge()`. Each is called when /metrics is scraped; a failing gauge is omitted and counted, so that a Redis outage
does not hide the database's figures.

A counter with labels has no series before `labels()` names its values, and a series that begins with its first
increment has not grown for Prometheus. So the module of a counter names the values that alert rules name.
"""

from __future__ import annotations

import hmac
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from django.conf import settings
from django.core.management import CommandError
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from dispatch.core.environment import made_folder
from dispatch.core.observability import liveness
from dispatch.core.observability.metric_files import FOLDER, use_files_of_child

use_files_of_child()

log = structlog.get_logger(__name__)

enqueue_failures = Counter(
    "dispatch_enqueue_failures_total", "Jobs that could not be enqueued because Redis was unavailable.", ["queue"]
)
redis_rebuilds = Counter("dispatch_redis_rebuilds_total", "Times that Redis was found empty and rebuilt.")
circuit_failures = Counter(
    "dispatch_circuit_failures_total",
    "Failures of a server that opened its circuit breaker in this process.",
    ["server"],
)
rq_jobs = Counter("dispatch_rq_jobs_total", "RQ jobs that this worker ran.", ["queue", "outcome"])
rq_job_seconds = Histogram("dispatch_rq_job_seconds", "Duration of an RQ job.", ["queue"])
loop_steps = Counter("dispatch_loop_steps_total", "Steps run by the dispatcher's loops.", ["loop", "outcome"])
loop_step_seconds = Histogram("dispatch_loop_step_seconds", "Duration of one step of a loop.", ["loop"])
request_seconds = Histogram(
    "dispatch_request_seconds", "Duration of a request to the phone provider, its result written.", ["threads"]
)
leadership_changes = Counter(
    "dispatch_leadership_changes_total", "Leaderships won and lost by this process.", ["name", "what"]
)
leaderships_given_up = Counter(
    "dispatch_leaderships_given_up_total",
    "Leaderships given up because every step failed, or one took too long.",
    ["name", "reason"],
)
events_read = Counter("dispatch_events_read_total", "Events that a durable reader has applied.", ["reader"])
forgotten = Counter("dispatch_forgotten_total", "Rows deleted by retention, by kind.", ["what"])
gauge_failures = Counter(
    "dispatch_gauge_failures_total", "Gauges that could not be read at scrape time.", ["gauge"]
)

# Pairs of a gauge: (label values, figure).
Samples = Iterable[tuple[tuple[str, ...], float]]
_gauges: dict[str, tuple[str, tuple[str, ...], Callable[[], Samples]]] = {}


def gauge(
    name: str, documentation: str, labels: tuple[str, ...] = ()
) -> Callable[[Callable[[], Samples]], Callable[[], Samples]]:
    """Register a function (decorator) that yields (label values, figure) pairs when /metrics is scraped."""

    def register(read: Callable[[], Samples]) -> Callable[[], Samples]:
        _gauges[name] = (documentation, labels, read)
        return read

    return register


class _ProcessCollector(Collector):
    """Collect this process's own metrics."""

    def collect(self) -> Iterator[Metric]:
        yield from REGISTRY.collect()

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _ScrapeCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        for name, (documentation, labels, read) in list(_gauges.items()):
            family = GaugeMetricFamily(name, documentation, labels=labels)
            try:
                for values, figure in read():
                    family.add_metric(values, figure)
            except Exception as error:  # one failing server must not hide the others
                gauge_failures.labels(name).inc()
                log.warning("gauge_read_failed", gauge=name, error=str(error))
                continue
            yield family

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registering must not contact servers."""
        return iter(())


def render_metrics() -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = _counters()
    registry.register(_ScrapeCollector())
    return generate_latest(registry)


def _counters() -> CollectorRegistry:
    registry = CollectorRegistry()
    if os.environ.get(FOLDER):
        MultiProcessCollector(registry)
    else:
        registry.register(_ProcessCollector())
    return registry


def new_folder(folder: Path) -> dict[str, str]:
    """Empty the folder, and return the environment that makes children write their counters there.

    Raises ImproperlyConfigured if the folder cannot be created.
    """
    shutil.rmtree(folder, ignore_errors=True)
    return {FOLDER: str(made_folder(folder))}


def collect(folder: Path) -> dict[str, str]:
    """Prepare to export the children's counters, like `new_folder`, unless an outer supervisor already does."""
    if os.environ.get(FOLDER):
        return {FOLDER: os.environ[FOLDER]}
    shared = new_folder(folder)
    os.environ.update(shared)
    return shared


def may_read(authorization: str) -> bool:
    """Return whether the Authorization header of a request allows reading metrics.

    Without a METRICS_TOKEN nobody may, except in development.
    """
    if not settings.METRICS_TOKEN:
        return bool(settings.DEVELOPMENT)
    expected = f"Bearer {settings.METRICS_TOKEN}"
    return hmac.compare_digest(authorization.encode("utf-8", "surrogateescape"), expected.encode())


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # of a client that sends nothing

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        """Log nothing: scrapes are frequent."""


def make_application() -> Callable[..., Iterable[bytes]]:
    """Return the WSGI application of METRICS_PORT: /healthz for everyone, counters for those with the token."""
    exported = make_wsgi_app(_counters())

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == liveness.PATH:
            late = liveness.find_overdue()
            body = f"stuck: {', '.join(late)}\n".encode() if late else b"ok\n"
            headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
            start_response("503 Stuck" if late else "200 OK", headers)
            return [body]
        if may_read(environ.get("HTTP_AUTHORIZATION", "")):
            return exported(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
        return [b""]

    return application


def serve() -> None:
    """Serve `make_application` at METRICS_PORT, if it is set, from a thread.

    The gauges are exported by the web process. Raises CommandError if the port cannot be used.
    """
    if not settings.METRICS_PORT:
        return
    address = (settings.METRICS_HOST, settings.METRICS_PORT)
    try:
        server = make_server(*address, make_application(), _Server, _QuietHandler)
    except (OSError, OverflowError) as error:
        raise CommandError(f"METRICS_PORT {settings.METRICS_PORT} can't be used: {error}") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
