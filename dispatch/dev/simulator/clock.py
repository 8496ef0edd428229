"""Keep simulated time: real time multiplied by a speed, or a clock that is advanced explicitly.

All durations of calls are simulated seconds. Dates in responses and callbacks are wall-clock dates, so that
clients can compare them with their own clock at any speed.

Events happen in the order of their simulated times, however loaded the machine is: time does not pass a timer that
has not fired yet. A process that was suspended continues where it was and catches up, so a key planned for half a
second after the prompt is pressed before a time-out of five seconds, however late both are.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Awaitable, Callable

# Turns of the event loop that a task woken by a timer may need to plan its next step.
WAKING = 4
HELD = -math.inf


class Timer:
    """Hold one pending callback. `cancel()` is safe at any time."""

    __slots__ = ("fn", "when")

    def __init__(self, when: float, fn: Callable[[], None]) -> None:
        self.when = when
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None

    def fire(self) -> None:
        fn, self.fn = self.fn, None
        if fn is not None:
            fn()


class Clock:
    """Scale real time: one real second is `speed` simulated seconds."""

    manual = False

    def __init__(self, speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError("speed must be above zero")
        self.speed = speed
        self._zero = time.monotonic()
        self._now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._alarm: asyncio.Handle | None = None
        self._alarm_for = math.inf

    def now(self) -> float:
        """Return simulated seconds since the start."""
        if self._alarm_for == HELD:
            return self._now
        due = self._next()
        passed = (time.monotonic() - self._zero) * self.speed
        self._now = max(self._now, passed if due is None else min(passed, due.when))
        return self._now

    def wall(self) -> float:
        """Return seconds since the Unix epoch, for dates."""
        return time.time()

    def real(self, seconds: float) -> float:
        """Return the real seconds that `seconds` of simulated time take."""
        return seconds / self.speed

    def later(self, seconds: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` after that many simulated seconds."""
        return self.at(self.now() + max(0.0, seconds), fn)

    def at(self, when: float, fn: Callable[[], None]) -> Timer:
        """Call `fn` at that simulated time, or at once if it has passed."""
        timer = Timer(max(when, self.now()), fn)
        heapq.heappush(self._heap, (timer.when, next(self._order), timer))
        self._plan()
        return timer

    async def advance(self, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        raise ValueError("this clock runs on its own: start the simulator with --clock manual to advance it")

    def _next(self) -> Timer | None:
        """Return the earliest timer that was not canceled."""
        while self._heap and self._heap[0][2].fn is None:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _plan(self) -> None:
        """Schedule a wake-up for the earliest timer."""
        due = self._next()
        if due is None or self._alarm_for <= due.when:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_for = due.when
        left = self._zero + due.when / self.speed - time.monotonic()
        self._alarm = asyncio.get_running_loop().call_later(max(left, 0.0), self._ring)

    def _ring(self) -> None:
        """Fire one timer. Time stops until the tasks woken by it have planned their next step."""
        self._alarm, self._alarm_for = None, math.inf
        due = self._next()
        if due is not None and due.when <= self.now():
            heapq.heappop(self._heap)
            self._alarm_for = HELD
            due.fire()
            self._rest(WAKING)
        else:
            self._plan()

    def _rest(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            self._alarm = loop.call_soon(self._rest, turns - 1)
        else:
            self._alarm, self._alarm_for = None, math.inf
            self._plan()


class SteppedClock(Clock):
    """Move only by `advance`. Timers fire in the order of their times."""

    manual = True

    def __init__(self, speed: float = 1.0) -> None:
        super().__init__(speed)
        self._wall = time.time()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def _plan(self) -> None:
        """Do nothing: `advance` checks the timers itself."""

    async def advance(self, seconds: float, settle: Callable[[], Awaitable[None]]) -> None:
        """Advance time. What a timer triggered, including webhooks, finishes before the next one fires."""
        if seconds < 0:
            raise ValueError("time can only move forward")
        target = self._now + seconds
        await settle()
        while (due := self._next()) is not None and due.when <= target:
            heapq.heappop(self._heap)
            self._now = max(self._now, due.when)
            due.fire()
            await settle()
        self._now = target
        await settle()
