"""Publish a stream of changes: a version counter and the clients that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Feed:
    """Hold the last changes. `wait` returns as soon as there is a change that the caller has not seen."""

    def __init__(self, keep: int = 5000) -> None:
        self.version = 0
        self._changes: deque[dict[str, Any]] = deque(maxlen=keep)
        self._waiting: set[asyncio.Future[None]] = set()

    def publish(self, change: dict[str, Any]) -> None:
        self.version += 1
        self._changes.append({"version": self.version, **change})
        self.wake()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def since(self, version: int) -> list[dict[str, Any]]:
        newer: list[dict[str, Any]] = []
        for change in reversed(self._changes):
            if change["version"] <= version:
                break
            newer.append(change)
        return newer[::-1]

    async def wait(self, after: int, seconds: float) -> list[dict[str, Any]]:
        """Return changes after that version, or an empty list if none came in `seconds` of real time."""
        if self.version <= after:
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait_for(future, seconds)
            except TimeoutError:
                pass
            finally:
                self._waiting.discard(future)
        return self.since(after)
