"""Wake tasks at their time. The event loop's own timers are rounded up to milliseconds."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Iterable


class PreciseTimer:
    """Wake tasks of the running event loop from a thread, which waits with the precision of the kernel."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap: when, in which order, whom
        self._order = itertools.count()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="precise-timer", daemon=True)
        self._thread.start()

    async def sleep(self, seconds: float) -> None:
        """Return after this time, never earlier."""
        future: asyncio.Future[None] = self._loop.create_future()
        entry = time.monotonic() + seconds, next(self._order), future
        with self._changed:
            heapq.heappush(self._waiting, entry)
            if self._waiting[0] is entry:
                self._changed.notify()
        await future

    def close(self) -> None:
        """Stop the thread. Tasks that still sleep are not woken: cancel them first."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                due = []
                while self._waiting and self._waiting[0][0] <= time.monotonic():
                    due.append(heapq.heappop(self._waiting)[2])
                if due:
                    self._loop.call_soon_threadsafe(_wake, due)
                left_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # it may have been cancelled
            future.set_result(None)
