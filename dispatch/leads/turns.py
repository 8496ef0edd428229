"""What a dialer goes by: the bell that says there is something to do, and whose room comes next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import structlog
from django.conf import settings

from dispatch.core.redis import REDIS_ERRORS, connect
from dispatch.leads import schedule
from dispatch.leads.services import claiming
from dispatch.leads.services.claiming import Claimed

log = structlog.get_logger(__name__)

# Nothing anywhere: the bell wakes us; this is for a bell that was not heard.
IDLE_S = 1.0
TROUBLE_S = 1.0
NO_LINES = ("lines_busy", "pool_full")


class Turn:
    """Whose room comes next: in turn, those that have to wait left out."""

    def __init__(self) -> None:
        self._last = 0
        self._waiting: dict[int, tuple[float, str]] = {}  # pool → not before (monotonic), why
        self._hints: list[int] = []
        self._lock = threading.Lock()

    def take(self, worker: str, most: int, committed: Callable[[Claimed], None]) -> Claimed:
        """A batch from the first room in turn that has one; else how long to wait. `committed`: see
        `claiming.claim`."""
        now, wait_s, why = time.monotonic(), IDLE_S, "empty"
        for pool_id in self._rooms():
            until, reason = self._waiting.get(pool_id, (0.0, ""))
            if until > now:
                wait_s, why = min(wait_s, until - now), reason
                continue
            claimed = claiming.claim(worker, pool_id, most, committed)
            self._last = pool_id
            if claimed.wait_s > 0:
                longest = settings.LEADS_TICK_S if claimed.why in NO_LINES else IDLE_S
                this_s = min(claimed.wait_s, longest)
                with self._lock:
                    self._waiting[pool_id] = (time.monotonic() + this_s, claimed.why)
                wait_s, why = min(wait_s, this_s), claimed.why
            if claimed.taken:
                return claimed
        return Claimed(why=why, wait_s=wait_s)

    def line_freed(self, pool_id: int) -> None:
        with self._lock:
            if self._waiting.get(pool_id, (0.0, ""))[1] in NO_LINES:
                del self._waiting[pool_id]

    def hint(self, pool_id: int) -> None:
        """A lead has just come into that pool's room, and whoever looks next has nothing else to do: who is busy
        goes on from room to room, or a pool with a steady trickle would hold up the others."""
        with self._lock:
            self._hints.append(pool_id)

    def _rooms(self) -> Iterator[int]:
        """Where to look: first where something has just come in, then every room in turn."""
        with self._lock:
            hints, self._hints = dict.fromkeys(self._hints), []
        yield from hints
        yield from (pool_id for pool_id in self._in_turn(schedule.rooms()) if pool_id not in hints)

    def _in_turn(self, pools: list[int]) -> list[int]:
        with self._lock:
            self._waiting = {pool: until for pool, until in self._waiting.items() if pool in pools}
        return [p for p in pools if p > self._last] + [p for p in pools if p <= self._last]


class Ears(threading.Thread):
    """Listens to the bell and hands on what it says; after an outage it rings once, for what was missed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hear: object) -> None:
        super().__init__(name="leads-bell", daemon=True)
        self._loop, self._hear = loop, hear
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        missed = False
        while not self._over.is_set():
            try:
                listener = connect(socket_timeout=5).pubsub(ignore_subscribe_messages=True)
                listener.subscribe(schedule.bell())
                if missed:
                    self._tell("due")
                missed = False
                while not self._over.is_set():
                    message = listener.get_message(timeout=0.5)
                    if message and isinstance(message["data"], bytes):
                        self._tell(message["data"].decode())
                listener.close()
            except REDIS_ERRORS as error:
                log.debug("the bell is not heard", error=str(error))
                missed = True
                self._over.wait(TROUBLE_S)
            except RuntimeError:  # the event loop is closed
                return

    def _tell(self, message: str) -> None:
        self._loop.call_soon_threadsafe(self._hear, message)  # type: ignore[arg-type]
