"""Loops as the dispatcher runs them, in a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from dispatch.core import loop_runner
from dispatch.core.loop_runner import Runner
from dispatch.core.loops import Loop, Service
from tests.waiting import PATIENCE


@contextmanager
def runs(*loops: Loop | Service) -> Iterator[Callable[[], None]]:
    """Runs the loops in a thread; yields what stops them."""
    began = threading.Event()
    holder: list[tuple[Runner, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        runner = Runner(list(loops))
        holder.append((runner, asyncio.get_running_loop()))
        began.set()
        await runner.run()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert began.wait(PATIENCE)
    runner, event_loop = holder[0]

    def stop() -> None:
        if thread.is_alive():
            event_loop.call_soon_threadsafe(runner.stop)
            thread.join(PATIENCE)
        assert not thread.is_alive(), "the loops do not stop"

    # A machine that stands still is no reason to leave a step or a leadership behind.
    patient = mock.patch.multiple(loop_runner, STOP_GRACE_S=PATIENCE, RESIGN_GRACE_S=PATIENCE)
    try:
        with patient:
            yield stop
            stop()
    finally:
        stop()
