"""Divide the shards among executors by leases.

The live executors share a fixed number of shards. Each executor holds its fair share by leases in PostgreSQL,
renewed with one statement; it releases its surplus when another executor joins, and takes over expired leases.
This is for efficiency only: two executors on one shard would skip each other's locked rows and do nothing twice.
`core.runtime.leader_election` would need one statement per shard and renewal.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import time
import uuid

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.core.db.batcher import DatabaseThread
from dispatch.core.db.prepared import execute, fetch_all
from dispatch.core.redis.client import QUEUES, breaker, server_url
from dispatch.core.runtime import queues
from dispatch.core.runtime.loop_runner import REDIS_LOST_AFTER_S
from dispatch.schedules import sql
from dispatch.schedules.models import SHARDS

log = structlog.get_logger(__name__)

EXECUTOR = "schedules_executor"


class ShardLeaseManager:
    """Hold the shards of one executor. One thread calls `step` and `leave`; any thread may call `held`."""

    def __init__(self, name: str = "", *, lease_s: float | None = None) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.lease_s = settings.LEADER_LEASE_S if lease_s is None else lease_s
        self._lock = threading.Lock()
        self._held: frozenset[int] = frozenset()
        self._until = 0.0
        self._yielded_at: float | None = None  # since Redis was lost
        self._is_alone = False  # then: no other executor is alive

    def held(self) -> list[int]:
        """Return the shards whose lease has not expired, according to the last step."""
        with self._lock:
            return sorted(self._held) if _ticks() < self._until else []

    def step(self) -> list[int]:
        """Renew, release and take over leases; return the shards held now.

        Raises django.db.Error if the database is unavailable.
        """
        asked = _ticks()  # before the query, so the real lease can only end later
        mine = {"name": self.name, "lease": self.lease_s}
        alive, known, renewed = fetch_all(sql.RENEW_EXECUTOR, mine)[0]
        held, share = set(renewed), math.ceil(SHARDS / alive)
        if known < SHARDS:
            execute(sql.ADD_SHARDS, {"shards": SHARDS})
        if len(held) > share:
            surplus = sorted(held)[share:]
            execute(sql.RELEASE_SHARDS, {"name": self.name, "shards": surplus})
            held -= set(surplus)
        elif len(held) < share:
            held |= {row[0] for row in fetch_all(sql.TAKE_SHARDS, {**mine, "limit": share - len(held)})}
        with self._lock:
            before, self._held, self._until = self._held, frozenset(held), asked + self.lease_s
        if before != self._held:
            log.info("shards_rebalanced", shards=len(held), executors=alive)
        return sorted(held)

    def step_or_yield(self) -> list[int]:
        """Take part as `step` does. Without Redis, yield the shards to the other executors, if there are any.

        A run that is claimed without Redis reaches no worker until it is found to be lost.
        """
        if breaker(server_url(QUEUES)).failing_s() < REDIS_LOST_AFTER_S:
            self._yielded_at = None
            return self.step()
        if self._yielded_at is None:
            self._yielded_at, self._is_alone = _ticks(), False
            log.warning("shards_released", reason="Redis cannot be reached")
            self.leave()
        if not self._is_alone:
            if _ticks() - self._yielded_at < self.lease_s or fetch_all(sql.COUNT_ALIVE)[0][0]:
                return []
            self._is_alone = True
        return self.step()

    def leave(self) -> None:
        """Release all shards at once."""
        with self._lock:
            held, self._held = self._held, frozenset()
        with transaction.atomic():
            execute(sql.RELEASE_SHARDS, {"name": self.name, "shards": sorted(held)})
            execute(sql.DELETE_EXECUTOR, {"name": self.name})
        queues.notify_loop(EXECUTOR)


# This process's shards.
keeper = ShardLeaseManager()


async def renew_shards_forever(stopping: asyncio.Event) -> None:
    """Hold this process's shards until `stopping` is set, then release them."""
    thread = DatabaseThread("schedules-shards")
    try:
        while not stopping.is_set():
            try:
                await thread.run(_renew_and_notify)
            except Exception as error:
                log.warning("shard_renewal_failed", error=str(error).strip())
            try:
                async with asyncio.timeout(settings.LEADER_RENEW_S):
                    await stopping.wait()
            except TimeoutError:
                pass
    finally:
        try:
            await thread.run(keeper.leave)
        except Exception as error:
            log.warning("shard_release_failed", error=str(error).strip())
        await asyncio.to_thread(thread.close)


def _renew_and_notify() -> None:
    had = keeper.held()
    if set(keeper.step_or_yield()) - set(had):
        queues.notify_loop(EXECUTOR)


def _ticks() -> float:
    """Return monotonic seconds, shifted with the clock that tests move."""
    return time.monotonic() + clock.offset_ms() / 1000
