"""Define core's gauges: queues, workers, leaderships and the lag of event readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from rq import Worker

from dispatch.core import clock
from dispatch.core.db import write_probe
from dispatch.core.events import quarantine
from dispatch.core.events.own_cursors import own_cursors
from dispatch.core.events.readers import readers
from dispatch.core.models import Leadership
from dispatch.core.observability.metrics import gauge
from dispatch.core.redis.client import all_clients
from dispatch.core.redis.state import eviction_policy
from dispatch.core.runtime import leader_election, reachability
from dispatch.core.runtime.queues import rq_queue

Samples = Iterator[tuple[tuple[str, ...], float]]


@gauge("dispatch_queue_jobs", "RQ jobs of a queue, by state.", ("queue", "state"))
def queue_jobs() -> Samples:
    """Yield the number of jobs by queue and state."""
    for name in settings.RQ_QUEUES:
        queue = rq_queue(name)
        yield (name, "waiting"), queue.count
        yield (name, "scheduled"), queue.scheduled_job_registry.get_job_count(cleanup=False)
        yield (name, "started"), queue.started_job_registry.get_job_count(cleanup=False)
        yield (name, "failed"), queue.failed_job_registry.get_job_count(cleanup=False)


@gauge("dispatch_workers", "Live workers of a queue.", ("queue",))
def workers() -> Samples:
    """Yield the number of live workers by queue."""
    for name in settings.RQ_QUEUES:
        yield (name,), len(Worker.all(queue=rq_queue(name)))  # workers whose key has not expired


@gauge("dispatch_leaderships", "1 for each leadership that is held, 0 for one that has expired.", ("name",))
def leaderships() -> Samples:
    """Yield 1 for each leadership that is held and 0 for each that has expired."""
    now = clock.now()
    for row in Leadership.objects.all():
        yield (row.name.removeprefix("loop:"),), float(row.expires_at > now)


@gauge("dispatch_redis_memory_bytes", "Memory that Redis uses, and its limit (0: none).", ("server", "what"))
def redis_memory() -> Samples:
    """Yield the bytes that each server uses, and its limit."""
    for server, client in all_clients().items():
        memory: Any = client.info("memory")
        yield (server, "used"), float(memory["used_memory"])
        yield (server, "max"), float(memory.get("maxmemory", 0))


@gauge("dispatch_redis_evicts", "1 for each Redis that evicts keys when memory runs low.", ("server",))
def redis_evicts() -> Samples:
    """Yield 1 for each server whose maxmemory-policy is not noeviction, else 0."""
    for server, client in all_clients().items():
        memory: Any = client.info("memory")
        yield (server,), float(bool(eviction_policy(memory)))


@gauge(
    "dispatch_loops_given_up",
    "1 for each loop whose leader gave up and that has none, or has since recently.",
    ("name",),
)
def loops_given_up() -> Samples:
    """Yield 1 for each leadership whose leader gave up, else 0."""
    given_up = leader_election.given_up()
    for name in Leadership.objects.values_list("name", flat=True):
        yield (name,), float(name in given_up)


@gauge("dispatch_hosts_cut_off", "Hosts that do not reach the phone provider although another host does.")
def hosts_cut_off() -> Samples:
    """Yield the number of such hosts."""
    yield (), float(len(reachability.cut_off_hosts()))


@gauge(
    "dispatch_database_rejects_writes",
    "1 if PostgreSQL answers and rejects writes, because its disk is full or it is read-only.",
)
def database_rejects_writes() -> Samples:
    """Yield 1 while writes fail, else 0."""
    yield (), float(write_probe.find_fault() is not None)


@gauge(
    "dispatch_reader_lag_seconds",
    "Age of the oldest event that a reader has not applied, without organizations that it reads separately.",
    ("reader",),
)
def reader_lag() -> Samples:
    """Yield the lag in seconds by reader of this process."""
    for name, reader in readers.items():
        yield (name,), reader.lag_s()


@gauge(
    "dispatch_reader_separate_organizations",
    "Organizations that a reader reads separately, because their events have too many recipients.",
    ("reader",),
)
def separate_organizations() -> Samples:
    """Yield the number of such organizations by reader."""
    for name in readers:
        yield (name,), float(len(own_cursors(name)))


@gauge(
    "dispatch_reader_failed_events",
    "Events that a reader failed to handle, by state: retrying, quarantined, or held behind one that failed.",
    ("reader", "state"),
)
def reader_failed_events() -> Samples:
    """Yield the number of failed events of each reader and state."""
    counts = quarantine.counts()
    for name in readers:
        for state in ("retrying", "quarantined", "held"):
            yield (name, state), counts.get((name, state), 0)
