"""Compute the occurrences of a schedule.

Four kinds of timing, always in a named zone:

- **once**: at `trigger_at`.
- **interval**: every `every` units of `unit` from `anchor`. Seconds, minutes and hours are elapsed time: "every 6
  hours" is six hours, even across a clock change. Days, weeks, months and years follow the calendar and keep the
  wall-clock time: "every day" from 09:00 stays at 09:00. A month without that day uses its last day. The 31st
  runs on April 30, on February 28 or 29, and on May 31 again, because each step is counted from the anchor.
  February 29 runs on February 28 of other years.
- **cron**: five fields, read as Debian's cron does. `0 9 31 * *` runs only in months that have a 31st, `0 9 29 2
  *` only in leap years, `0 9 L * *` on the last day, `0 9 * * MON#1` on the first Monday.
- **rrule**: a recurrence rule of RFC 5545, counted from `anchor`, whose time of day it has unless it names
  hours and minutes. Its times are wall-clock times; see `rules.rrules`.

When the clocks change, a wall-clock time that does not exist that day moves to the first moment after the gap
(02:30 becomes 03:00), and a time that exists twice counts once, the first time. Cron expressions whose minute or
hour begins with `*` follow elapsed time, so they run in both of the repeated hours and never in an hour that does
not exist.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dispatch.core.languages import gettext as _
from dispatch.schedules.rules import rrules
from dispatch.schedules.rules.exclusions import NO_EXCLUSIONS, Exclusions

ELAPSED_S = {"second": 1, "minute": 60, "hour": 3600}
CALENDAR_DAYS = {"day": 1, "week": 7}
CALENDAR_MONTHS = {"month": 1, "year": 12}
UNITS = (*ELAPSED_S, *CALENDAR_DAYS, *CALENDAR_MONTHS)
MAX_EVERY = 10_000
_INSTANT = timedelta(microseconds=1)
# Times within one exclusion that are looked at before the computation starts again at its end.
MAX_SKIPPED = 20
# Calendar steps beyond this year have no occurrence, which avoids overflow errors.
LAST_YEAR = 9000


class InvalidTiming(ValueError):
    """The timing is malformed or never runs. `field` is the invalid field; the message is for users."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Timing:
    """A timing: one of `trigger_at`, (`every`, `unit`, `anchor`), `cron` and (`rrule`, `anchor`).

    All datetimes are aware.

    Nothing runs before `starts_at` or after `ends_at`, or more than `max_occurrences` times. Excluded times are
    left out and do not count.
    """

    zone: str
    trigger_at: datetime | None = None
    every: int | None = None
    unit: str = ""
    anchor: datetime | None = None
    cron: str = ""
    rrule: str = ""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_occurrences: int | None = None
    exclusions: Exclusions = NO_EXCLUSIONS

    def __post_init__(self) -> None:
        # Python compares and adds datetimes of the same zone by wall-clock time, so they are stored in UTC.
        for name in ("trigger_at", "anchor", "starts_at", "ends_at"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is not UTC:
                object.__setattr__(self, name, moment.astimezone(UTC))


def next_after(timing: Timing, after: datetime, made: int = 0) -> datetime | None:
    """Return the first occurrence later than `after`, in UTC, or None. `made` is how many came before."""
    if timing.max_occurrences is not None and made >= timing.max_occurrences:
        return None
    after = after.astimezone(UTC)
    if timing.starts_at is not None:
        after = max(after, timing.starts_at - _INSTANT)
    next_at = next(_times_after(timing, after), None)
    if next_at is not None and timing.exclusions.end_at(next_at) is not None:
        next_at = next(matches_after(timing, next_at), None)
    return None if next_at is None or (timing.ends_at is not None and next_at > timing.ends_at) else next_at


def matches_after(timing: Timing, after: datetime) -> Iterator[datetime]:
    """Yield the times later than `after` that are not excluded, in UTC, whatever the timing's limits.

    The expression is parsed once, and again after a long exclusion: parsing is expensive.
    """
    while True:
        excluded_until, count = None, 0
        for at in _times_after(timing, after):
            end = timing.exclusions.end_at(at)
            if end is None:
                yield at
                continue
            excluded_until, count = end, count + 1 if end == excluded_until else 1
            if count == MAX_SKIPPED:
                after = end - _INSTANT
                break
        else:
            return


def first_occurrence(timing: Timing, now: datetime) -> datetime | None:
    """Return the first occurrence of a schedule that is created now.

    A trigger time counts even if it has passed. Without a start, an interval first runs after one interval.
    """
    if timing.trigger_at is not None:
        return timing.trigger_at
    return next_after(timing, now)


def occurrences(timing: Timing, after: datetime, made: int = 0) -> Iterator[datetime]:
    """Yield all occurrences later than `after`, in order."""
    while (next_at := next_after(timing, after, made)) is not None:
        yield next_at
        after, made = next_at, made + 1


def preview(timing: Timing, now: datetime, count: int = 10, made: int = 0) -> list[datetime]:
    """Return the next `count` occurrences, in UTC."""
    return list(islice(occurrences(timing, now, made), count))


def shortest_gap_s(timing: Timing, now: datetime, count: int = 60) -> float | None:
    """Return the shortest time in seconds between the next `count` occurrences; None if there is only one."""
    times = preview(timing, now, count)
    return min(((later - at).total_seconds() for at, later in pairwise(times)), default=None)


def check_timing(timing: Timing, now: datetime, shortest_s: float) -> None:
    """Raise InvalidTiming unless the timing is valid and runs at least once.

    An interval must be at least `shortest_s` seconds.
    """
    if timing.every is not None:
        _check_interval(timing, shortest_s)
    if timing.cron:
        _check_cron(timing.cron)
    if timing.starts_at and timing.ends_at and timing.ends_at <= timing.starts_at:
        raise InvalidTiming("ends_at", _("The end is before the start."))
    if timing.trigger_at is not None:
        return
    if not preview(timing, now, 1):
        field = "cron" if timing.cron else "rrule" if timing.rrule else "ends_at"
        raise InvalidTiming(field, _("This would never run."))


def localize(naive: datetime, zone: str) -> datetime:
    """Resolve a wall-clock time in a zone: the earlier of two moments, or the first moment after a gap."""
    tz = ZoneInfo(zone)
    aware = naive.replace(tzinfo=tz, fold=0)
    if not _is_imaginary(aware):
        return aware
    naive = naive.replace(second=0, microsecond=0)
    while _is_imaginary(aware := naive.replace(tzinfo=tz, fold=0)):
        naive += timedelta(minutes=1)
    return aware


def is_moved(at: datetime, timing: Timing) -> bool:
    """Return whether the occurrence was moved because its wall-clock time does not exist that day."""
    zone = ZoneInfo(timing.zone)
    before = at.astimezone(UTC) - timedelta(minutes=1)
    here, then = at.astimezone(zone), before.astimezone(zone)
    if (here.utcoffset() or timedelta()) <= (then.utcoffset() or timedelta()):
        return False
    if timing.cron:
        minute, hour = timing.cron.split()[:2]
        return not (minute.startswith("*") or hour.startswith("*")) and not _matches(timing.cron, here)
    if timing.rrule:
        wall = here.replace(tzinfo=None)
        return next(_rule_times(timing, wall - timedelta(minutes=1), wall), None) != wall
    return timing.unit not in ELAPSED_S and timing.anchor is not None


def _times_after(timing: Timing, after: datetime) -> Iterator[datetime]:
    """Yield all times later than `after`, in UTC and in order, whatever the timing's limits and exclusions."""
    if timing.trigger_at is not None:
        return iter([timing.trigger_at] if timing.trigger_at > after else [])
    if timing.cron:
        return _times_by_cron(timing.cron, timing.zone, after)
    if timing.rrule:
        return _times_by_rule(timing, after)
    return _times_by_interval(timing, after)


def _times_by_cron(cron: str, zone: str, after: datetime) -> Iterator[datetime]:
    # In the second of two equal hours, croniter counts by the wall clock and may return a time in the past.
    for match_at in CronSim(cron, after.astimezone(ZoneInfo(zone))):
        if (utc := match_at.astimezone(UTC)) > after:
            yield utc
            after = utc


def _times_by_rule(timing: Timing, after: datetime) -> Iterator[datetime]:
    there = after.astimezone(ZoneInfo(timing.zone)).replace(tzinfo=None)
    # A gap or an overlap of the clocks moves a time by less than a day.
    for wall in _rule_times(timing, there - timedelta(days=1)):
        if (utc := localize(wall, timing.zone).astimezone(UTC)) > after:
            yield utc
            after = utc


def rule_start(timing: Timing) -> datetime:
    """Return the wall-clock time from which a recurrence rule counts.

    Without a given start, it has the minute of the anchor: nobody chose its seconds.
    """
    assert timing.anchor is not None
    start = timing.anchor.astimezone(ZoneInfo(timing.zone)).replace(tzinfo=None)
    return start if timing.starts_at is not None else start.replace(second=0, microsecond=0)


def _rule_times(timing: Timing, after: datetime, until: datetime | None = None) -> Iterator[datetime]:
    """Yield the wall-clock times of the rule that are later than `after`, and not later than `until`."""
    for wall in rrules.wall_times(timing.rrule, rule_start(timing), after):
        if wall.year >= LAST_YEAR or (until is not None and wall > until):
            return
        if wall > after:
            yield wall


def _times_by_interval(timing: Timing, after: datetime) -> Iterator[datetime]:
    assert timing.every is not None
    assert timing.anchor is not None
    every, unit, anchor = timing.every, timing.unit, timing.anchor
    if unit in ELAPSED_S:
        step = timedelta(seconds=every * ELAPSED_S[unit])
        at = anchor if after < anchor else anchor + ((after - anchor) // step + 1) * step
        while True:
            yield at
            at += step
    if after < anchor:
        yield anchor
        after = anchor
    wall = anchor.astimezone(ZoneInfo(timing.zone)).replace(tzinfo=None)
    now_there = after.astimezone(ZoneInfo(timing.zone)).replace(tzinfo=None)
    number = max(0, _steps_between(wall, now_there, every, unit) - 1)
    while (wall_time := _calendar_step(wall, number * every, unit)) is not None:
        if (utc := localize(wall_time, timing.zone).astimezone(UTC)) > after:
            yield utc
            after = utc
        number += 1


def _steps_between(wall: datetime, then: datetime, every: int, unit: str) -> int:
    if unit in CALENDAR_DAYS:
        return (then.date() - wall.date()).days // (every * CALENDAR_DAYS[unit])
    months = (then.year - wall.year) * 12 + then.month - wall.month
    return months // (every * CALENDAR_MONTHS[unit])


def _calendar_step(wall: datetime, steps: int, unit: str) -> datetime | None:
    if unit in CALENDAR_DAYS:
        days = steps * CALENDAR_DAYS[unit]
        return wall + timedelta(days=days) if wall.year + days // 365 < LAST_YEAR else None
    months = wall.year * 12 + wall.month - 1 + steps * CALENDAR_MONTHS[unit]
    year, month = divmod(months, 12)
    if year >= LAST_YEAR:
        return None
    last = calendar.monthrange(year, month + 1)[1]
    return wall.replace(year=year, month=month + 1, day=min(wall.day, last))


def _check_interval(timing: Timing, shortest_s: float) -> None:
    if timing.unit not in UNITS:
        raise InvalidTiming("unit", _("Must be one of {units}.").format(units=", ".join(UNITS)))
    if not 1 <= (timing.every or 0) <= MAX_EVERY:
        raise InvalidTiming("every", _("Must be from 1 to {most}.").format(most=MAX_EVERY))
    if timing.unit in ELAPSED_S and (timing.every or 0) * ELAPSED_S[timing.unit] < shortest_s:
        raise InvalidTiming(
            "every", _("Must be at least {shortest_s} seconds apart.").format(shortest_s=f"{shortest_s:g}")
        )


def _check_cron(cron: str) -> None:
    if len(cron.split()) != 5:
        raise InvalidTiming("cron", _("Must have five fields: minute, hour, day, month, weekday."))
    try:
        CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidTiming("cron", _("Invalid cron expression: {error}.").format(error=error)) from None


def _matches(cron: str, local: datetime) -> bool:
    """Return whether the expression matches exactly this wall-clock time."""
    match_at = next(CronSim(cron, local.replace(tzinfo=None) - timedelta(minutes=1)), None)
    return match_at == local.replace(tzinfo=None)


def _is_imaginary(aware: datetime) -> bool:
    return aware.replace(tzinfo=None) != aware.astimezone(UTC).astimezone(aware.tzinfo).replace(tzinfo=None)
