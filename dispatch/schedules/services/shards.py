"""Which shards this process takes due runs of.

A fixed number of shards is shared among the executors that live: each keeps its fair share by a lease in
PostgreSQL, renewed with one statement, gives up what is more than that when another one comes, and takes over what
has lapsed. This is economy: two executors on one shard would skip each other's locked rows and do nothing twice.
`core.election` is not used for it, for that would be a statement per shard and renewal."""

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

from dispatch.core import clock, queues
from dispatch.core.batching import DatabaseThread
from dispatch.core.statements import do, rows
from dispatch.schedules import sql
from dispatch.schedules.models import SHARDS

log = structlog.get_logger(__name__)

EXECUTOR = "schedules_executor"


class Keeper:
    """One executor's shards. `step` and `leave` are called by one thread, `held` by any."""

    def __init__(self, name: str = "", *, lease_s: float | None = None) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.lease_s = settings.LEADER_LEASE_S if lease_s is None else lease_s
        self._lock = threading.Lock()
        self._held: frozenset[int] = frozenset()
        self._until = 0.0

    def held(self) -> list[int]:
        """The shards whose lease, as last seen, still runs."""
        with self._lock:
            return sorted(self._held) if _ticks() < self._until else []

    def step(self) -> list[int]:
        """Renews, gives up and takes; the shards held now. Raises django.db.Error when the database is gone."""
        asked = _ticks()  # before the question: the lease can only be longer than we believe
        mine = {"name": self.name, "lease": self.lease_s}
        with transaction.atomic():
            do(sql.ALIVE, mine)
            alive, known = rows(sql.COUNT_ALIVE)[0]
            if known < SHARDS:
                do(sql.ADD_SHARDS, {"shards": SHARDS})
            share = math.ceil(SHARDS / max(1, alive))
            held = {row[0] for row in rows(sql.RENEW_SHARDS, mine)}
            if len(held) > share:
                surplus = sorted(held)[share:]
                do(sql.LEAVE_SHARDS, {"name": self.name, "shards": surplus})
                held -= set(surplus)
            elif len(held) < share:
                held |= {row[0] for row in rows(sql.TAKE_SHARDS, {**mine, "limit": share - len(held)})}
            do(sql.FORGET_DEAD)
        with self._lock:
            before, self._held, self._until = self._held, frozenset(held), asked + self.lease_s
        if before != self._held:
            log.info("executes shards", shards=len(held), executors=alive)
        return sorted(held)

    def leave(self) -> None:
        """Hands all of them over at once."""
        with self._lock:
            held, self._held = self._held, frozenset()
        with transaction.atomic():
            do(sql.LEAVE_SHARDS, {"name": self.name, "shards": sorted(held)})
            do(sql.DROP_EXECUTOR, {"name": self.name})
        queues.wake(EXECUTOR)


# This process's own.
keeper = Keeper()


async def keep(stopping: asyncio.Event) -> None:
    """The dispatcher's service: keeps this process's shards until `stopping` is set, then hands them over."""
    thread = DatabaseThread("schedules-shards")
    try:
        while not stopping.is_set():
            try:
                await thread.run(_keep)
            except Exception as error:
                log.warning("the shards could not be renewed", error=str(error).strip())
            try:
                async with asyncio.timeout(settings.LEADER_RENEW_S):
                    await stopping.wait()
            except TimeoutError:
                pass
    finally:
        try:
            await thread.run(keeper.leave)
        except Exception as error:
            log.warning("the shards were not handed over, their leases will lapse", error=str(error).strip())
        await asyncio.to_thread(thread.close)


def _keep() -> None:
    had = keeper.held()
    if set(keeper.step()) - set(had):
        queues.wake(EXECUTOR)


def _ticks() -> float:
    """Seconds that never jump, moved along with the tests' clock."""
    return time.monotonic() + clock.offset_ms() / 1000
