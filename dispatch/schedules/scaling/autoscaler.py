"""Who owns the worker processes of this machine: looks at each queue once a second, and starts or drains."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog
from django.conf import settings
from django.db import connection

from dispatch.core import clock
from dispatch.core.redis import REDIS_ERRORS, client, key
from dispatch.core.supervisor import Spec, Supervisor
from dispatch.schedules.scaling.figures import look
from dispatch.schedules.scaling.rules import Decision, Policy, decide, within

log = structlog.get_logger(__name__)

TICK_S = 1.0
# What is told of it to the metrics counts for so long.
TOLD_FOR_S = 15.0
# With no limit given, workers take at most this share of the database's connections.
SHARE_OF_CONNECTIONS = 0.5


@dataclass
class _Queue:
    policy: Policy
    calm_since: float | None = None
    started: int = 0
    stopped: int = 0
    why: str = ""
    wanted: int = 0
    slots: dict[int, str] = field(default_factory=dict)  # of the workers that are to go on


class Autoscaler:
    """`supervisor` runs the workers; `cap` is how many there may be in all (each has one database connection)."""

    def __init__(self, policies: Mapping[str, Policy], supervisor: Supervisor, cap: int) -> None:
        self._queues = {name: _Queue(policy) for name, policy in policies.items()}
        self._supervisor, self._cap = supervisor, cap
        self._capped = False

    def run(self, wait: Callable[[float], bool]) -> None:
        """Steps until `wait(seconds)` returns true."""
        while True:
            self.step(time.monotonic())
            if wait(TICK_S):
                return

    def step(self, now: float) -> None:
        """One look at everything. `now`: seconds on a clock that only goes on. Without Redis there are no figures:
        nothing changes but that every queue has its minimum."""
        decisions: dict[str, Decision] = {}
        for name, queue in self._queues.items():
            there = len(queue.slots)
            try:
                decisions[name] = decide(queue.policy, look(name, clock.now()), there, queue.calm_since, now)
            except REDIS_ERRORS:
                decisions[name] = Decision(max(there, queue.policy.minimum), "Redis is away")
        minimums = {name: queue.policy.minimum for name, queue in self._queues.items()}
        allowed = within(self._cap, {name: found.workers for name, found in decisions.items()}, minimums)
        self._tell_of_the_cap(decisions, allowed)
        for name, queue in self._queues.items():
            queue.calm_since, queue.why = decisions[name].calm_since, decisions[name].why
            queue.wanted = decisions[name].workers
            self._bring_to(name, queue, allowed[name])
        self._publish()

    def workers(self, queue_name: str) -> int:
        """How many of that queue's workers are to go on."""
        return len(self._queues[queue_name].slots)

    def _bring_to(self, name: str, queue: _Queue, count: int) -> None:
        before = len(queue.slots)
        while len(queue.slots) < count:
            slot = self._free_slot(name, queue)
            queue.slots[slot] = child = _child_name(name, slot)
            self._supervisor.add(Spec(child, _command(name, slot)))
            queue.started += 1
        while len(queue.slots) > count:
            self._supervisor.drain(queue.slots.pop(max(queue.slots)))
            queue.stopped += 1
        if count != before and before:
            log.info("workers scaled", queue=name, before=before, now=count, why=queue.why)

    def _free_slot(self, name: str, queue: _Queue) -> int:
        """The lowest number that no worker has, one that drains included."""
        taken = set(self._supervisor.names())
        slot = 1
        while slot in queue.slots or _child_name(name, slot) in taken:
            slot += 1
        return slot

    def _tell_of_the_cap(self, decisions: Mapping[str, Decision], allowed: Mapping[str, int]) -> None:
        short = {name: found.workers - allowed[name] for name, found in decisions.items()}
        capped = any(short.values())
        if capped and not self._capped:
            log.warning(
                "more workers are wanted than the database has connections for", cap=self._cap, short=short
            )
        self._capped = capped

    def _publish(self) -> None:
        told = {
            "at": time.time(),
            "cap": self._cap,
            "queues": {
                name: {
                    "workers": len(queue.slots),
                    "wanted": queue.wanted,
                    "minimum": queue.policy.minimum,
                    "maximum": queue.policy.maximum,
                    "started": queue.started,
                    "stopped": queue.stopped,
                    "why": queue.why,
                }
                for name, queue in self._queues.items()
            },
        }
        try:
            client().hset(told_key(), socket.gethostname(), json.dumps(told))
        except REDIS_ERRORS as error:
            log.debug("the figures of the autoscaler were not told", error=str(error))


def told_key() -> str:
    """The Redis hash in which each machine's autoscaler tells what it has decided."""
    return key("autoscale")


def policies() -> dict[str, Policy]:
    """A policy for every queue, as WORKERS, WORKERS_MAX and AUTOSCALE_… say. A queue that WORKERS does not name
    has no worker here."""
    return {
        name: Policy(
            minimum=minimum,
            maximum=max(minimum, settings.WORKERS_MAX.get(name, minimum)),
            per_worker=settings.AUTOSCALE_JOBS_PER_WORKER,
            oldest_s=settings.AUTOSCALE_OLDEST_S,
            calm_s=settings.AUTOSCALE_CALM_S,
        )
        for name, minimum in settings.WORKERS.items()
    }


def worker_cap() -> int:
    """How many workers the database has room for: AUTOSCALE_DB_CONNECTIONS, or half of what the server allows."""
    if settings.AUTOSCALE_DB_CONNECTIONS:
        return int(settings.AUTOSCALE_DB_CONNECTIONS)
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_connections")
        (allowed,) = cursor.fetchone()
    return max(1, int(int(allowed) * SHARE_OF_CONNECTIONS))


def _child_name(queue_name: str, slot: int) -> str:
    return f"worker {queue_name} {slot}"


def _command(queue_name: str, slot: int) -> list[str]:
    manage = str(settings.BASE_DIR / "manage.py")
    return [sys.executable, manage, "worker", queue_name, "--slot", str(slot)]
