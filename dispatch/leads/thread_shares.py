"""Divide a dialer's request threads among accounts, so that an account that hangs takes only its share."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress

from dispatch.leads.rules.fairness import fair_share

# An account with a request that has run for longer than this (seconds) is slow, and must leave more threads free.
SLOW_S = 2.0


class ThreadShares:
    """The shares of `threads` threads. All methods run in one event loop."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._used = 0
        self._began: defaultdict[int, dict[int, float]] = defaultdict(dict)  # account → request → its start
        self._changed = asyncio.Event()

    async def acquire(self, account_id: int, request_id: int, wait_s: float) -> bool:
        """Take a thread for a request of the account. Return False if it gets none within `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        while not self._has_share(account_id):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        self._used += 1
        self._began[account_id][request_id] = time.monotonic()
        return True

    def release(self, account_id: int, request_id: int) -> None:
        """Return a thread that `acquire` took. All requests that wait for one check their share again."""
        began = self._began[account_id]
        del began[request_id]
        if not began:
            del self._began[account_id]
        self._used -= 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _has_share(self, account_id: int) -> bool:
        began, free = self._began.get(account_id, {}), self._threads - self._used
        if began and time.monotonic() - next(iter(began.values())) > SLOW_S:  # the oldest
            return len(began) < free
        return fair_share(len(began), free) > 0
