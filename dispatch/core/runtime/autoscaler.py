"""Autoscale the worker processes of this machine: check each queue once a second, and start or drain workers."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.conf import settings
from django.db import connection

from dispatch.core import clock
from dispatch.core.observability import liveness
from dispatch.core.redis.client import REDIS_ERRORS, client, key
from dispatch.core.runtime.autoscaling_rules import Decision, Policy, cap_workers, decide
from dispatch.core.runtime.queues import read_queue
from dispatch.core.runtime.supervisor import ProcessSpec, Supervisor

log = structlog.get_logger(__name__)

TICK_S = 1.0
STUCK_AFTER_S = 60.0  # a step takes milliseconds, or some time-outs of Redis
# Metrics ignore reports that are older than this.
REPORT_LIFETIME_S = 15.0
# Without a limit, workers take at most this share of the database's connections.
SHARE_OF_CONNECTIONS = 0.5


@dataclass
class _Queue:
    policy: Policy
    calm_since: float | None = None
    started: int = 0
    stopped: int = 0
    why: str = ""
    wanted: int = 0
    slots: dict[int, str] = field(default_factory=dict)  # slot → child name, of the workers that do not drain


class Autoscaler:
    """Scale workers. `supervisor` runs them; `cap` is the total maximum."""

    def __init__(self, policies: Mapping[str, Policy], supervisor: Supervisor, cap: int) -> None:
        self._queues = {name: _Queue(policy) for name, policy in policies.items()}
        self._supervisor, self._cap = supervisor, cap
        self._capped = False

    def run(self, wait: Callable[[float], bool]) -> None:
        """Step until `wait(seconds)` returns true."""
        _delete_old_reports()
        while True:
            liveness.set_deadline("autoscaler", STUCK_AFTER_S)
            self.step(time.monotonic())
            if wait(TICK_S):
                return

    def step(self, now: float) -> None:
        """Check every queue and scale its workers. `now`: seconds on a monotonic clock.

        Without Redis the queues' depths are unknown, so workers are only added up to each queue's minimum.
        """
        decisions: dict[str, Decision] = {}
        for name, queue in self._queues.items():
            count = len(queue.slots)
            try:
                decisions[name] = decide(queue.policy, read_queue(name, clock.now()), count, queue.calm_since, now)
            except REDIS_ERRORS:
                decisions[name] = Decision(max(count, queue.policy.minimum), "Redis is unavailable")
        minimums = {name: queue.policy.minimum for name, queue in self._queues.items()}
        # Draining workers keep their database connections until they have ended.
        cap = self._cap - len(self._supervisor.names(draining=True))
        allowed = cap_workers(cap, {name: decision.workers for name, decision in decisions.items()}, minimums)
        self._log_cap(decisions, allowed)
        for name, queue in self._queues.items():
            queue.calm_since, queue.why = decisions[name].calm_since, decisions[name].why
            queue.wanted = decisions[name].workers
            self._scale_to(name, queue, allowed[name])
        self._publish()

    def workers(self, queue_name: str) -> int:
        """Return how many of that queue's workers are not draining."""
        return len(self._queues[queue_name].slots)

    def _scale_to(self, name: str, queue: _Queue, count: int) -> None:
        before = len(queue.slots)
        while len(queue.slots) < count:
            slot = self._free_slot(name, queue)
            queue.slots[slot] = child = _child_name(name, slot)
            self._supervisor.add(ProcessSpec(child, _command(name, slot)))
            queue.started += 1
        while len(queue.slots) > count:
            self._supervisor.drain(queue.slots.pop(max(queue.slots)))
            queue.stopped += 1
        if count != before and before:
            log.info("workers_scaled", queue=name, before=before, now=count, why=queue.why)

    def _free_slot(self, name: str, queue: _Queue) -> int:
        """Return the lowest slot that no worker has, including draining ones."""
        taken = set(self._supervisor.names())
        slot = 1
        while slot in queue.slots or _child_name(name, slot) in taken:
            slot += 1
        return slot

    def _log_cap(self, decisions: Mapping[str, Decision], allowed: Mapping[str, int]) -> None:
        short = {name: decision.workers - allowed[name] for name, decision in decisions.items()}
        capped = any(short.values())
        if capped and not self._capped:
            log.warning("workers_capped_by_database", cap=self._cap, short=short)
        self._capped = capped

    def _publish(self) -> None:
        report = {
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
            client().hset(report_key(), socket.gethostname(), json.dumps(report))
        except REDIS_ERRORS as error:
            log.debug("autoscaler_report_failed", error=str(error))


def report_key() -> str:
    """Return the Redis hash in which each machine's autoscaler reports its decisions."""
    return key("autoscale")


def _delete_old_reports() -> None:
    """Delete the reports of machines without an autoscaler: a container has another host name each time."""
    try:
        reports: Any = client().hgetall(report_key())
        old = [host for host, report in reports.items() if not is_recent(json.loads(report))]
        if old:
            client().hdel(report_key(), *old)
    except REDIS_ERRORS as error:
        log.debug("autoscaler_reports_not_deleted", error=str(error))


def is_recent(report: Mapping[str, Any]) -> bool:
    """Return whether the report's autoscaler still runs."""
    return bool(time.time() - report["at"] <= REPORT_LIFETIME_S)


def policies() -> dict[str, Policy]:
    """Return a policy for every queue, from WORKERS, WORKERS_MAX and AUTOSCALE_….

    A queue that WORKERS does not name has no worker here.
    """
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
    """Return the maximum of workers: AUTOSCALE_DB_CONNECTIONS, or half of the server's connections."""
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
