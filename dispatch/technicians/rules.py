"""Describe eligibility reasons and compute working hours, in pure functions.

The code of a reason is decided only by the CASE in `sql`. This module maps it to a verdict and a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from dispatch.core.languages import gettext, mark

DAY_S = 86_400
WEEK_S = 7 * DAY_S
_METERS = {"mi": 1609.344, "km": 1000.0}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

FIT = "fit"
BUSY = "on_another_offer"
INACTIVE = "inactive"
OUT_OF_RADIUS = "out_of_radius"
LACKS_SKILL = "lacks_skill"
OWN_RADIUS = "own_radius"
OFF_DUTY = "off_duty"
AUTO_PAUSED = "auto_paused"
OFF_SHIFT = "off_shift"
AT_LIMIT = "at_limit"

# Texts for the technicians who are not among the candidates, per reason.
_IN_SUM: dict[str, str] = {
    FIT: mark("eligible, farther away"),
    BUSY: mark("with another offer"),
    INACTIVE: mark("no longer active"),
    OUT_OF_RADIUS: mark("outside the radius"),
    LACKS_SKILL: mark("without the skills"),
    OWN_RADIUS: mark("outside their own radius"),
    OFF_DUTY: mark("off duty"),
    AUTO_PAUSED: mark("auto-paused"),
    OFF_SHIFT: mark("off shift"),
    AT_LIMIT: mark("at their limit of open jobs"),
}


# The speed of a drive whose duration is unknown, on the straight line (meters per second, about 40 km/h).
USUAL_SPEED = 11.0


class JobTime(NamedTuple):
    """When a job occupies a technician, without the drives before and after it.

    `is_planned`: it has an arrival window, so it need not take place now.
    """

    begin: datetime
    end: datetime
    is_planned: bool = False


class Facts(NamedTuple):
    """The facts behind the text of a reason.

    Distances are in meters. `local_now`: the time in the shifts' time zone. `hours`: spans of the week (see
    `week_spans`). `missing`: names of the missing skills. `misses`: missed calls in a row. `travel_s`: the drive
    in seconds, if known. `open_jobs`: those at the same time. `is_planned`: that time need not be now.
    """

    distance_m: int
    unit: str
    needs_skill: bool
    radius_m: int
    own_radius_m: int | None
    open_jobs: int
    max_open_jobs: int
    missing: tuple[str, ...]
    hours: tuple[tuple[int, int], ...] | None
    local_now: datetime
    misses: int = 0
    travel_s: int | None = None
    is_planned: bool = False


def verdict_of(code: str) -> str:
    """Return the verdict of a reason code: `in`, `deferred` or `out`."""
    return {FIT: "in", BUSY: "deferred"}.get(code, "out")


def reason_words(code: str, facts: Facts) -> str:
    """Return the reason for dispatchers in at most 160 characters, such as "12 km, qualified"."""
    match code:
        case "fit":
            words = _way_words(facts) + (", qualified" if facts.needs_skill else "")
        case "on_another_offer":
            words = f"{_way_words(facts)}, has another offer"
        case "out_of_radius":
            words = f"{_beyond(facts.radius_m, facts)} outside the radius"
        case "own_radius":
            words = f"{_beyond(facts.own_radius_m or 0, facts)} outside own radius"
        case "lacks_skill":
            words = f"missing skill: {', '.join(facts.missing) or 'unknown'}"
        case "off_duty":
            words = "off duty"
        case "auto_paused":
            words = f"paused after {facts.misses} missed calls"
        case "off_shift":
            words = _off_shift(facts)
        case "at_limit":
            words = f"{facts.open_jobs} of {facts.max_open_jobs} open job{'' if facts.max_open_jobs == 1 else 's'}"
            words += " at that time" if facts.is_planned else ""
        case "inactive":
            words = "no longer active"
        case _:
            raise ValueError(f"unknown reason {code!r}")
    return words if len(words) <= 160 else words[:159] + "…"


def rest_words(rest: Mapping[str, int]) -> str:
    """Summarize the technicians who are not candidates: "120 off shift, 14 off duty".

    The most frequent reason comes first. Return "" if there are none.
    """
    counted = sorted(rest.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {gettext(_IN_SUM.get(code, code))}" for code, count in counted if count)


def distance_words(meters: float, unit: str) -> str:
    """Return a distance in the unit `mi` or `km`: one decimal below ten, none above."""
    value = meters / _METERS[unit]
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def road_words(seconds: int) -> str:
    """Return a drive such as "12 min by road" or "1 h 5 min by road"."""
    minutes = max(1, round(seconds / 60))
    hours, rest = divmod(minutes, 60)
    words = f"{minutes} min" if not hours else f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{words} by road"


def _way_words(facts: Facts) -> str:
    return distance_words(facts.distance_m, facts.unit) if facts.travel_s is None else road_words(facts.travel_s)


def _beyond(radius_m: int, facts: Facts) -> str:
    return distance_words(max(0, facts.distance_m - radius_m), facts.unit)


def _off_shift(facts: Facts) -> str:
    start = next_start(facts.hours or (), facts.local_now)
    if start is None:
        return "off shift"
    if start.date() == facts.local_now.date():
        return f"off shift until {start:%H:%M}"
    return f"off shift until {_WEEKDAYS[start.weekday()]} {start:%H:%M}"


def next_start(hours: Sequence[tuple[int, int]], local_now: datetime) -> datetime | None:
    """Return the local time when work next begins (with the zone's current offset), or None without hours."""
    monday = (local_now - timedelta(days=local_now.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
    second = week_second(local_now)
    waits = [(low - second) % WEEK_S for low, _ in hours]
    if not waits:
        return None
    return monday + timedelta(seconds=second + min(waits))


def week_second(local: datetime) -> int:
    """Return the seconds since Monday 00:00 on the wall clock."""
    return local.weekday() * DAY_S + local.hour * 3600 + local.minute * 60 + local.second


def week_spans(shifts: Iterable[tuple[int, time, time]]) -> tuple[tuple[int, int], ...] | None:
    """Convert shifts (weekday from Monday = 0, starts, ends) to disjoint half-open spans of seconds of the week.

    An end at or before the start is on the next day; Sunday night continues into Monday. Return None for no
    shifts.
    """
    pieces: list[tuple[int, int]] = []
    for weekday, starts, ends in shifts:
        low = weekday * DAY_S + _seconds(starts)
        high = weekday * DAY_S + _seconds(ends) + (DAY_S if ends <= starts else 0)
        pieces += [(low, min(high, WEEK_S))] + ([(0, high - WEEK_S)] if high > WEEK_S else [])
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pieces):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged) or None


def _seconds(at: time) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second


MIN_PIN_LENGTH, MAX_PIN_LENGTH = 4, 8


def pin_problem(pin: str) -> str:
    """Return why this PIN is not allowed, or an empty string."""
    if not (pin.isascii() and pin.isdecimal() and MIN_PIN_LENGTH <= len(pin) <= MAX_PIN_LENGTH):
        return gettext("Enter {least} to {most} digits.").format(least=MIN_PIN_LENGTH, most=MAX_PIN_LENGTH)
    steps = {int(after) - int(before) for before, after in pairwise(pin)}
    if steps in ({0}, {1}, {-1}):
        return gettext("Too easy to guess. Don't use one digit only or a sequence such as 1234.")
    return ""


# After this many wrong PINs in a row from one kind of caller, none of that kind is accepted for a while.
MAX_PIN_FAILURES = 5
PIN_LOCK = timedelta(minutes=30)
# The limits of wrong PINs within a day: from one kind of caller, and from all of them.
MAX_DAILY_PIN_FAILURES, MAX_DAILY_PIN_FAILURES_OF_ALL = 10, 20
PIN_DAY = timedelta(days=1)
# Wrong PINs belong to one burst if the pauses between them are shorter.
PIN_BURST_PAUSE = timedelta(hours=2)


class PinFact(StrEnum):
    """What is recorded about PINs. `locked`: the dispatchers were notified of a lock."""

    WRONG = "pin_wrong"
    ACCEPTED = "pin_accepted"
    LOCKED = "pin_locked"


class PinEntry(NamedTuple):
    """A recorded fact about a technician's PIN. `caller`: the kind of caller, as `check_pin` was given it."""

    fact: PinFact
    caller: str
    at: datetime


@dataclass(frozen=True)
class PinLock:
    """A lock of the PIN for one kind of caller, or for all. `failures`: the wrong PINs that caused it."""

    until: datetime
    failures: int
    is_for_all: bool = False


def pin_lock(entries: Sequence[PinEntry], caller: str, now: datetime) -> PinLock | None:
    """Return the lock that lasts longest for this kind of caller, or None. `entries`: oldest first.

    Callers of another kind cause a lock only together, by the limit of all wrong PINs within a day. Someone who
    forges the technician's number therefore can't lock out calls that their carrier vouches for in another way.
    """
    locks, in_row = [], 0
    wrong = [entry.at for entry in entries if entry.fact is PinFact.WRONG and entry.at > now - PIN_DAY]
    theirs = []
    for entry in entries:
        if entry.caller != caller or entry.fact is PinFact.LOCKED:
            continue
        in_row = in_row + 1 if entry.fact is PinFact.WRONG else 0
        if entry.fact is PinFact.WRONG and entry.at > now - PIN_DAY:
            theirs.append(entry.at)
        if in_row == MAX_PIN_FAILURES:
            locks.append(PinLock(entry.at + PIN_LOCK, MAX_PIN_FAILURES))
            in_row = 0
    for times, limit, is_for_all in (
        (theirs, MAX_DAILY_PIN_FAILURES, False),
        (wrong, MAX_DAILY_PIN_FAILURES_OF_ALL, True),
    ):
        if len(times) >= limit:
            locks.append(PinLock(times[-limit] + PIN_DAY, limit, is_for_all))
    return max((lock for lock in locks if lock.until > now), key=lambda lock: lock.until, default=None)


def is_in_notified_burst(entries: Sequence[PinEntry], now: datetime) -> bool:
    """Return whether the dispatchers were already notified of the burst of wrong PINs that lasts at `now`."""
    after = now
    for entry in reversed(entries):
        if after - entry.at >= PIN_BURST_PAUSE:
            return False
        if entry.fact is PinFact.LOCKED:
            return True
        if entry.fact is PinFact.WRONG:
            after = entry.at
    return False
