"""Tasks are woken at their time, in order, and never early."""

from __future__ import annotations

import asyncio
import time

import pytest

from dispatch.core.runtime.precise_timer import PreciseTimer


def test_tasks_are_woken_in_the_order_of_their_times_and_never_early() -> None:
    async def main() -> list[float]:
        timer, woken, began = PreciseTimer(), [], time.monotonic()

        async def sleep(seconds: float) -> None:
            await timer.sleep(seconds)
            assert time.monotonic() - began >= seconds
            woken.append(seconds)

        await asyncio.gather(*(sleep(seconds) for seconds in (0.03, 0.01, 0.05, 0.0, 0.02)))
        await asyncio.to_thread(timer.close)
        return woken

    assert asyncio.run(main()) == [0.0, 0.01, 0.02, 0.03, 0.05]


def test_task_that_was_cancelled_delays_no_other() -> None:
    async def main() -> None:
        timer = PreciseTimer()
        first, second = (asyncio.create_task(timer.sleep(seconds)) for seconds in (0.01, 0.02))
        await asyncio.sleep(0)
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.to_thread(timer.close)

    asyncio.run(main())


def test_timer_ends_while_tasks_sleep() -> None:
    async def main() -> None:
        timer = PreciseTimer()
        task = asyncio.create_task(timer.sleep(3600))
        await asyncio.sleep(0)
        await asyncio.to_thread(timer.close)
        task.cancel()

    asyncio.run(main())
