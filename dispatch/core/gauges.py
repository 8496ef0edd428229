"""Core's own gauges: queues, leaderships, the lag of event readers."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from rq import Worker

from dispatch.core import clock
from dispatch.core.metrics import gauge
from dispatch.core.models import Leadership
from dispatch.core.queues import rq_queue
from dispatch.core.readers import readers

Samples = Iterator[tuple[tuple[str, ...], float]]


@gauge("dispatch_queue_jobs", "RQ jobs of a queue, by where they are.", ("queue", "state"))
def queue_jobs() -> Samples:
    for name in settings.RQ_QUEUES:
        queue = rq_queue(name)
        yield (name, "waiting"), queue.count
        yield (name, "scheduled"), queue.scheduled_job_registry.get_job_count(cleanup=False)
        yield (name, "started"), queue.started_job_registry.get_job_count(cleanup=False)
        yield (name, "failed"), queue.failed_job_registry.get_job_count(cleanup=False)


@gauge("dispatch_workers", "Workers of a queue that live.", ("queue",))
def workers() -> Samples:
    for name in settings.RQ_QUEUES:
        yield (name,), len(Worker.all(queue=rq_queue(name)))  # those whose key has not ended


@gauge("dispatch_leaderships", "1 for each leadership that somebody holds, 0 for one that lapsed.", ("name",))
def leaderships() -> Samples:
    now = clock.now()
    for row in Leadership.objects.all():
        yield (row.name,), float(row.expires_at > now)


@gauge("dispatch_reader_lag_seconds", "Age of the oldest event that a reader has not applied.", ("reader",))
def reader_lag() -> Samples:
    for name, reader in readers.items():
        yield (name,), reader.lag_s()
