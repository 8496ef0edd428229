"""Divide a limited number of slots among keys, such as organizations.

A key takes another slot only while more slots are free than it holds, so that no number of greedy keys takes them
all. `FairShares` counts; `AsyncShares` also lets coroutines of one event loop wait for a slot. `FairThreads`
divides threads by the same rule.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque


class FairShares:
    """At most `limit` slots, at most `per_key` of one key. Callers hold a lock where several threads use it."""

    def __init__(self, limit: int, per_key: int | None = None) -> None:
        self.limit, self.per_key = limit, limit if per_key is None else per_key
        self.held: Counter[int] = Counter()
        self._taken = 0

    @property
    def free(self) -> int:
        """Return how many slots are free."""
        return self.limit - self._taken

    def has_share(self, key: int, most: int | None = None) -> bool:
        """Return whether the key may take another slot. `most`: at most this many of the key for now."""
        held = self.held[key]
        if held >= (self.per_key if most is None else min(most, self.per_key)):
            return False
        return self.free > held

    def take(self, key: int) -> None:
        """Take a slot. The caller has checked `has_share`."""
        self.held[key] += 1
        self._taken += 1

    def release(self, key: int) -> None:
        """Release a slot of the key."""
        self._taken -= 1
        self.held[key] -= 1
        if not self.held[key]:
            del self.held[key]


class SharesClosed(Exception):
    """The shares were closed while a coroutine waited for one."""


class AsyncShares:
    """Slots for which coroutines of one event loop wait; those of a key get theirs in order.

    `try_take` works from any thread, everything else in the event loop.
    """

    def __init__(self, limit: int, per_key: int | None = None) -> None:
        self._shares = FairShares(limit, per_key)
        self._lock = threading.Lock()
        self._queues: dict[int, deque[asyncio.Future[None]]] = {}
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Return how many coroutines wait."""
        return sum(map(len, self._queues.values()))

    def held(self, key: int) -> int:
        """Return how many slots the key holds."""
        with self._lock:
            return self._shares.held[key]

    def try_take(self, key: int) -> bool:
        """Take a slot, unless the key has no share left or coroutines wait for it; return whether it did."""
        with self._lock:
            if key in self._queues or not self._shares.has_share(key):
                return False
            self._shares.take(key)
            return True

    async def take(self, key: int) -> None:
        """Take a slot; wait until the key has a share left. Raises SharesClosed."""
        if self._is_closed:
            raise SharesClosed
        if self.try_take(key):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._queues.setdefault(key, deque()).append(turn)
        self._grant()  # a slot may have been released since
        try:
            await turn
        except BaseException:
            self._leave(key, turn)
            raise

    def release(self, key: int) -> None:
        """Release a slot of the key, and give it to a coroutine that waits."""
        with self._lock:
            self._shares.release(key)
        self._grant()

    def close(self) -> None:
        """Raise SharesClosed in all coroutines that wait, and in those that would."""
        self._is_closed = True
        with self._lock:
            turns = [turn for queue in self._queues.values() for turn in queue]
            self._queues.clear()
        for turn in turns:
            if not turn.done():
                turn.set_exception(SharesClosed())

    def _grant(self) -> None:
        """Give free slots to waiting keys, first to those that hold the fewest."""
        with self._lock:
            while ready := [key for key in self._queues if self._shares.has_share(key)]:
                key = min(ready, key=lambda waiting: self._shares.held[waiting])
                queue = self._queues[key]
                turn = queue.popleft()
                if not queue:
                    del self._queues[key]
                if not turn.done():
                    self._shares.take(key)
                    turn.set_result(None)

    def _leave(self, key: int, turn: asyncio.Future[None]) -> None:
        """Leave the queue, or return the slot if it was granted at the moment of the cancellation."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is not None and turn in queue:
                queue.remove(turn)
                if not queue:
                    del self._queues[key]
                return
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.release(key)
