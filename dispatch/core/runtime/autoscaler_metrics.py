"""Export the reports of all machines' autoscalers, for /metrics and for scaling a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.conf import settings

from dispatch.core import clock
from dispatch.core.observability.metrics import gauge
from dispatch.core.redis.client import client
from dispatch.core.runtime.autoscaler import is_recent, report_key
from dispatch.core.runtime.queues import read_queue

LABELS = ("host", "queue", "what")
Samples = Iterator[tuple[tuple[str, ...], float]]


def autoscaler_reports() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (machine, last report) for each autoscaler with a recent report."""
    reports: Any = client().hgetall(report_key())
    for host, raw in reports.items():
        report = json.loads(raw)
        if is_recent(report):
            yield host.decode(), report


@gauge(
    "dispatch_autoscaler_workers", "Workers that an autoscaler runs, and its limits.", ("host", "queue", "what")
)
def autoscaler_workers() -> Samples:
    """Yield the numbers of workers that run and are wanted, and the limits, by machine and queue."""
    for host, report in autoscaler_reports():
        for queue, figures in report["queues"].items():
            for what in ("workers", "wanted", "minimum", "maximum"):
                yield (host, queue, what), figures[what]


@gauge("dispatch_autoscaler_decisions", "Workers started and stopped since the autoscaler started.", LABELS)
def autoscaler_decisions() -> Samples:
    """Yield the numbers of workers started and stopped, by machine and queue."""
    for host, report in autoscaler_reports():
        for queue, figures in report["queues"].items():
            for what in ("started", "stopped"):
                yield (host, queue, what), figures[what]


@gauge("dispatch_queue_oldest_seconds", "Waiting time of the oldest RQ job of a queue.", ("queue",))
def queue_oldest() -> Samples:
    """Yield how long the oldest job of each queue has waited, in seconds."""
    for name in settings.RQ_QUEUES:
        yield (name,), read_queue(name, clock.now()).oldest_s
