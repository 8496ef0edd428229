"""Simulated time on a machine that falls behind: late, but in order."""

from __future__ import annotations

import asyncio
import time

import pytest

from dispatch.dev.simulator.__main__ import loop_factory
from dispatch.dev.simulator.clock import Clock


def stall(clock: Clock, seconds: float) -> None:
    """Block the process for that many simulated seconds, as a busy machine would."""
    until = time.monotonic() + clock.real(seconds)
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize("planned_during_the_stall", [False, True])
def test_timers_fire_in_order_of_their_times(planned_during_the_stall: bool) -> None:
    """A key half a second after the prompt, its second digit a fifth later, and a time-out of five seconds."""
    happened: list[tuple[str, float]] = []

    async def main() -> None:
        clock = Clock(speed=100)
        done = asyncio.Event()

        def saw(what: str) -> None:
            happened.append((what, round(clock.now() - began, 1)))

        def press() -> None:
            saw("first key")
            clock.later(0.2, lambda: saw("second key"))

        def give_up() -> None:
            saw("time-out")
            done.set()

        began = clock.now()
        clock.later(0.5, press)
        if planned_during_the_stall:
            stall(clock, 20)
        clock.at(began + 5, give_up)
        stall(clock, 20)
        await done.wait()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    assert happened == [("first key", 0.5), ("second key", 0.7), ("time-out", 5.0)]


def test_clock_catches_up_and_skips_cancelled_timers() -> None:
    fired: list[str] = []

    async def main() -> float:
        clock = Clock(speed=1000)
        done = asyncio.Event()
        cancelled = clock.later(1, lambda: fired.append("cancelled"))
        clock.later(3, done.set)
        clock.later(2, lambda: fired.append("kept"))
        cancelled.cancel()
        stall(clock, 50)
        await done.wait()
        await asyncio.sleep(0)
        return clock.now()

    assert asyncio.run(main()) >= 3
    assert fired == ["kept"]
