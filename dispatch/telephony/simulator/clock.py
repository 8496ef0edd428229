"""Simulated time: real time multiplied by a speed, or a clock that moves only when told.

All durations of calls are simulated seconds. Dates in answers and callbacks are wall-clock dates, so that
who reads them can compare them with its own clock whatever the speed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable


class Timer:
    """One pending callback; `cancel()` is safe at any time."""

    __slots__ = ("fn", "handle", "when")

    def __init__(self, when: float, fn: Callable[[], None]) -> None:
        self.when = when
        self.fn: Callable[[], None] | None = fn
        self.handle: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self.fn = None
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None

    def fire(self) -> None:
        fn, self.fn, self.handle = self.fn, None, None
        if fn is not None:
            fn()


class Clock:
    """Scaled clock: one real second is `speed` simulated seconds."""

    manual = False

    def __init__(self, speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError("speed must be above zero")
        self.speed = speed
        self._zero = time.monotonic()

    def now(self) -> float:
        """Simulated seconds since the start."""
        return (time.monotonic() - self._zero) * self.speed

    def wall(self) -> float:
        """Seconds since the Unix epoch, for dates."""
        return time.time()

    def real(self, seconds: float) -> float:
        """Real seconds that `seconds` of simulated time take."""
        return seconds / self.speed

    def later(self, seconds: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` after that many simulated seconds."""
        timer = Timer(self.now() + seconds, fn)
        timer.handle = asyncio.get_running_loop().call_later(max(0.0, self.real(seconds)), timer.fire)
        return timer

    async def advance(self, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        raise ValueError("this clock runs by itself: start the simulator with --clock manual to step it")


class SteppedClock(Clock):
    """Moves only by `advance`; timers fire in the order of their times."""

    manual = True

    def __init__(self, speed: float = 1.0) -> None:
        super().__init__(speed)
        self._now = 0.0
        self._wall = time.time()
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def later(self, seconds: float, fn: Callable[[], None]) -> Timer:
        timer = Timer(self._now + max(0.0, seconds), fn)
        heapq.heappush(self._heap, (timer.when, next(self._order), timer))
        return timer

    async def advance(self, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        """Move on, letting all that a timer set off (webhooks too) finish before the next one fires."""
        if seconds < 0:
            raise ValueError("time goes forward only")
        target = self._now + seconds
        await settle()
        while self._heap and self._heap[0][0] <= target:
            when, _, timer = heapq.heappop(self._heap)
            self._now = max(self._now, when)
            if timer.fn is None:
                continue
            timer.fire()
            await settle()
        self._now = target
        await settle()
