"""Find out in one statement which of the resting loops have something to do.

Most loops find nothing most of the time. Asking for each of them separately was nearly all that an idle dispatcher
did. A condition that is true too often only makes its loop run at its interval, as it would without one.

The statement has a separate thread and connection, and PostgreSQL cancels it after half a second, before a
migration that waits for one of its tables could run into a deadlock with it. Loops are checked before their
interval is over. While a check hangs, fails or cannot connect, each loop runs at its interval; the first check
that hangs delays none by more than LATE_S.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import structlog

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.db.batcher import DatabaseThread
from dispatch.core.observability import metrics
from dispatch.core.runtime.loops import Loop

log = structlog.get_logger(__name__)

NAME = "due_checks"
# How often resting loops are checked (with the shortest of their intervals, if that is less), how long a check may
# take before they run without it, and after which time PostgreSQL cancels it (seconds).
CHECK_S, LATE_S, LIMIT_S = 0.5, 0.2, 0.5
# Checks that fail for this long, without one that succeeds, are reported (seconds).
REPORT_AFTER_S = 5.0
# Planning the conditions costs ten times as much as checking them (seconds).
PLANS_S = 60.0
# A rest is shortened by a random part of up to this share: loops that end theirs together would each need a
# connection.
SPREAD = 0.5
# A condition on %(soon)s holds this long before its moment: longer than the time between two checks.
SOON = timedelta(seconds=1)


class DueChecks:
    """The loops with a condition, and until when they rest. All but `find_due` belongs to the event loop."""

    def __init__(self, loops: Iterable[Loop]) -> None:
        self._loops = {loop.name: loop for loop in loops if loop.due}
        self._run_at: dict[str, float] = {}  # resting loop → when its interval is over, in monotonic seconds
        self._failing_since: float | None = None  # in monotonic seconds
        self._is_reported = False
        self._check_s = min([CHECK_S, *(loop.interval_s for loop in self._loops.values())])
        # One statement for every set of loops; the conditions of others are not evaluated.
        cases = ", ".join(
            f"CASE WHEN {number} = ANY(%(checked)s::int[]) THEN {loop.due} END"
            for number, loop in enumerate(self._loops.values())
        )
        self._statement = f"SELECT {cases}"

    def __bool__(self) -> bool:
        return bool(self._loops)

    async def rest(self, loop: Loop, notified: asyncio.Event) -> None:
        """Wait until the loop is notified or has something to do, for at most `rest_s`."""
        self._run_at[loop.name] = time.monotonic() + loop.interval_s
        rest_s = max(loop.rest_s * random.uniform(1 - SPREAD, 1.0), loop.interval_s)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await notified.wait()
        finally:
            del self._run_at[loop.name]

    async def watch(self, stopping: asyncio.Event, trigger: Callable[[str], None]) -> None:
        """Trigger the resting loops that have something to do, each when its interval is over, until `stopping`.

        While a check is late, trigger all of them.
        """
        thread = DatabaseThread("due-checks")
        check: asyncio.Future[frozenset[str]] | None = None
        tick = time.monotonic()
        try:
            while not stopping.is_set():
                if check is not None and check.done():  # it was late: its answer is old
                    self._answer_of(check)
                    check = None
                if names := self._names(tick):
                    is_pending = check is not None
                    if check is None:
                        check = asyncio.ensure_future(thread.run(partial(self.find_due, names)))
                    await asyncio.wait([check], timeout=0 if is_pending else LATE_S)
                    if check.done():
                        due, check = self._answer_of(check), None
                    else:
                        due = None
                        self._report(f"no answer within {LATE_S} s")
                    for name in names if due is None else due:
                        self._trigger_in_time(name, trigger)
                tick = max(tick + self._check_s, time.monotonic())
                with suppress(TimeoutError):
                    async with asyncio.timeout(tick - time.monotonic()):
                        await stopping.wait()
        finally:
            if check is not None:
                check.cancel()
            await asyncio.to_thread(thread.close)

    def find_due(self, names: Collection[str]) -> frozenset[str]:
        """Return those of these loops whose condition holds. Raises django.db errors."""
        now = clock.now()
        checked = [number for number, name in enumerate(self._loops) if name in names]
        given = {"now": now, "soon": now + SOON, "checked": prepared.integers(checked)}
        prepared.keep_plans(PLANS_S)
        with prepared.index_plans(limit_s=LIMIT_S), prepared.index_order():
            answer = prepared.fetch_later(self._statement, given)
        row = answer()[0]
        return frozenset(name for name, is_due in zip(self._loops, row, strict=True) if is_due)

    def _names(self, now: float) -> list[str]:
        """Return the loops whose interval would be over before the next check is answered or late."""
        return [name for name, run_at in self._run_at.items() if run_at < now + self._check_s + 2 * LATE_S]

    def _answer_of(self, check: asyncio.Future[frozenset[str]]) -> frozenset[str] | None:
        """Return the answer of a check that has ended, or None if it failed."""
        try:
            due = check.result()
        except Exception as error:
            self._report(str(error).strip() or type(error).__name__)
            metrics.loop_steps.labels(NAME, "failed").inc()
            return None
        metrics.loop_steps.labels(NAME, "done").inc()
        if self._is_reported:
            log.info("due_checks_succeed_again")
        self._failing_since, self._is_reported = None, False
        return due

    def _report(self, trouble: str) -> None:
        """Log that resting loops run at their intervals, once until a check succeeds.

        That is no news before REPORT_AFTER_S: while a machine starts many processes, several checks are late.
        """
        self._failing_since = self._failing_since or time.monotonic()
        if not self._is_reported and time.monotonic() - self._failing_since >= REPORT_AFTER_S:
            log.warning("due_checks_failed", error=trouble)
            self._is_reported = True

    def _trigger_in_time(self, name: str, trigger: Callable[[str], None]) -> None:
        """Trigger the loop when its interval is over, if it still rests then."""
        run_at = self._run_at.get(name)
        if run_at is None:
            return

        def trigger_if_resting() -> None:
            if self._run_at.get(name) == run_at:
                trigger(name)

        asyncio.get_running_loop().call_later(max(0.0, run_at - time.monotonic()), trigger_if_resting)
