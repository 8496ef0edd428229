"""Run loops and asyncio services in threads of the test, until it stops them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from django.db import connections

from tests.support.waiting import PATIENCE


class BackgroundThreads:
    """Threads of one test. Each runs a function with an event that `stop` sets."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []

    def start(self, main: Callable[[threading.Event], None]) -> None:
        thread = _Thread(main)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Stop all threads and wait for their end."""
        for thread in self._threads:
            thread.stopping.set()
        for thread in self._threads:
            thread.join(timeout=PATIENCE)
            assert not thread.is_alive(), f"{thread.name} does not stop"
        self._threads.clear()


class _Thread(threading.Thread):
    def __init__(self, main: Callable[[threading.Event], None]) -> None:
        super().__init__(daemon=True, name=main.__name__)
        self.stopping = threading.Event()
        self._main = main

    def run(self) -> None:
        try:
            self._main(self.stopping)
        finally:
            connections.close_all()


def run_service(start: Callable[[asyncio.Event], Awaitable[None]], stopping: threading.Event) -> None:
    """Run an asyncio service, which ends when its event is set, until `stopping` is set."""

    async def main() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def watch() -> None:
            stopping.wait()
            loop.call_soon_threadsafe(done.set)

        threading.Thread(target=watch, daemon=True).start()
        await start(done)

    asyncio.run(main())
