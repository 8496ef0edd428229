"""Run loops as the dispatcher does, in a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from dispatch.core.runtime import loop_runner
from dispatch.core.runtime.loop_runner import Runner
from dispatch.core.runtime.loops import Loop, Service
from dispatch.core.runtime.reachability import Process
from tests.support.waiting import PATIENCE


@contextmanager
def runs(*loops: Loop | Service, process: Process | None = None) -> Iterator[Callable[[], None]]:
    """Run the loops in a thread, as this process or another; yield a function that stops them."""
    began = threading.Event()
    holder: list[tuple[Runner, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        runner = Runner(list(loops), process=process)
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

    # A slow machine is no reason to abandon a step or a leadership.
    patient = mock.patch.multiple(loop_runner, STOP_GRACE_S=PATIENCE, RESIGN_GRACE_S=PATIENCE)
    try:
        with patient:
            yield stop
            stop()
    finally:
        stop()
