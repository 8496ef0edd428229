"""Measure stretches: consecutive occurrences that are recorded in one row, because none of them runs.

The occurrences of an interval of seconds, minutes or hours are counted by arithmetic. Others are computed one by
one, at most MAX_COMPUTED of them, which bounds the time of a step. A longer stretch gets a second row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatch.schedules.rules.recurrence import ELAPSED_S, Timing, matches_after, next_after

MAX_COMPUTED = 50_000


@dataclass(frozen=True)
class Stretch:
    """`count` occurrences up to the one at `last`. `before_last` is None if there is only one.

    `following` is the first occurrence after them, or None if the schedule has no more.
    """

    count: int
    last: datetime
    before_last: datetime | None
    following: datetime | None

    def without_last(self) -> Stretch:
        """Return the stretch that the last occurrence follows. It must have at least two occurrences."""
        assert self.before_last is not None
        return Stretch(self.count - 1, self.before_last, None, self.last)


def measure_stretch(
    timing: Timing, first: datetime, number: int, until: datetime, due_at: Callable[[datetime], datetime]
) -> Stretch:
    """Measure the stretch from `first`, the occurrence `number`, to the last one that is due before `until`.

    `due_at` returns when an occurrence is due, by its trigger time: at most one interval later.
    """
    count, last = _leap(timing, first, number, until)
    before_last = None if count == 1 else last - _step(timing)
    computed = 0
    for at in _occurrences_after(timing, last, number + count - 1):
        if due_at(at) >= until or computed == MAX_COMPUTED:
            return Stretch(count, last, before_last, at)
        count, computed = count + 1, computed + 1
        last, before_last = at, last
    return Stretch(count, last, before_last, None)


def _leap(timing: Timing, first: datetime, number: int, until: datetime) -> tuple[int, datetime]:
    """Return (count, last) of a stretch from `first` that ends shortly before `until`, by arithmetic.

    (1, first) if the timing does not allow that.
    """
    if timing.every is None or timing.unit not in ELAPSED_S or timing.anchor is None or first < timing.anchor:
        return 1, first
    if timing.exclusions.starts:
        return 1, first
    step = _step(timing)
    target = until - 2 * step
    if timing.ends_at is not None:
        target = min(target, timing.ends_at)
    steps = (target - timing.anchor) // step - (first - timing.anchor) // step
    if timing.max_occurrences is not None:
        steps = min(steps, timing.max_occurrences - number)
    if steps < 2:
        return 1, first
    return steps + 1, timing.anchor + ((first - timing.anchor) // step + steps) * step


def _step(timing: Timing) -> timedelta:
    assert timing.every is not None
    return timedelta(seconds=timing.every * ELAPSED_S[timing.unit])


def _occurrences_after(timing: Timing, after: datetime, made: int) -> Iterator[datetime]:
    """Yield the occurrences later than `after`, as `recurrence.occurrences`; parse an expression only once."""
    if not (timing.cron or timing.rrule):
        while (at := next_after(timing, after, made)) is not None:
            yield at
            after, made = at, made + 1
        return
    after = max(after, timing.starts_at - timedelta(microseconds=1)) if timing.starts_at else after
    for at in matches_after(timing, after):
        if (timing.max_occurrences is not None and made >= timing.max_occurrences) or (
            timing.ends_at is not None and at > timing.ends_at
        ):
            return
        yield at
        after, made = at, made + 1
