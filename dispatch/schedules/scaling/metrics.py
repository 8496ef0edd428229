"""What the autoscalers of all machines say of themselves, for /metrics and for whoever scales a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from django.conf import settings

from dispatch.core import clock
from dispatch.core.metrics import gauge
from dispatch.core.redis import client
from dispatch.schedules.scaling.autoscaler import TOLD_FOR_S, told_key
from dispatch.schedules.scaling.figures import look

LABELS = ("host", "queue", "what")
Samples = Iterator[tuple[tuple[str, ...], float]]


def told() -> Iterator[tuple[str, dict[str, Any]]]:
    """(machine, what its autoscaler last told) of those that told it lately."""
    kept: Any = client().hgetall(told_key())
    for host, raw in kept.items():
        said = json.loads(raw)
        if time.time() - said["at"] <= TOLD_FOR_S:
            yield host.decode(), said


@gauge(
    "dispatch_autoscaler_workers", "Workers that an autoscaler runs, and its limits.", ("host", "queue", "what")
)
def autoscaler_workers() -> Samples:
    for host, said in told():
        for queue, figures in said["queues"].items():
            for what in ("workers", "wanted", "minimum", "maximum"):
                yield (host, queue, what), figures[what]


@gauge("dispatch_autoscaler_decisions", "Workers started and stopped since it began.", LABELS)
def autoscaler_decisions() -> Samples:
    for host, said in told():
        for queue, figures in said["queues"].items():
            for what in ("started", "stopped"):
                yield (host, queue, what), figures[what]


@gauge("dispatch_queue_oldest_seconds", "How long the oldest waiting RQ job of a queue has waited.", ("queue",))
def queue_oldest() -> Samples:
    for name in settings.RQ_QUEUES:
        yield (name,), look(name, clock.now()).oldest_s
