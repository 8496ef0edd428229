"""Pure decisions about technicians: what a reason says in words, and when somebody is at work.

The *code* of a reason is decided in one place, the CASE of `sql.JUDGED`; here it becomes a verdict and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

DAY_S = 86_400
WEEK_S = 7 * DAY_S
_METRES = {"mi": 1609.344, "km": 1000.0}
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

# How everyone beyond the considered is summed up.
_IN_SUM: dict[str, str] = {
    FIT: "fit, farther away",
    BUSY: "on another offer",
    INACTIVE: "no longer active",
    OUT_OF_RADIUS: "beyond the radius",
    LACKS_SKILL: "lacking a skill",
    OWN_RADIUS: "beyond their own radius",
    OFF_DUTY: "off duty",
    AUTO_PAUSED: "auto-paused",
    OFF_SHIFT: "off shift",
    AT_LIMIT: "at their limit of open jobs",
}


@dataclass(frozen=True)
class Facts:
    """What the words of a reason are made of. Distances in metres; `local_now` in the shifts' time zone;
    `hours` are the spans of the week (see `week_spans`); `missing` names the skills that are lacking."""

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


def verdict_of(code: str) -> str:
    """`in`, `deferred` or `out`: the verdict that a reason's code stands for."""
    return {FIT: "in", BUSY: "deferred"}.get(code, "out")


def reason_words(code: str, facts: Facts) -> str:
    """The reason as a dispatcher reads it, at most 160 characters: "12 km, skill ok"."""
    match code:
        case "fit":
            words = distance_words(facts.distance_m, facts.unit) + (", skill ok" if facts.needs_skill else "")
        case "on_another_offer":
            words = f"{distance_words(facts.distance_m, facts.unit)}, on another offer"
        case "out_of_radius":
            words = f"{_beyond(facts.radius_m, facts)} beyond the radius"
        case "own_radius":
            words = f"{_beyond(facts.own_radius_m or 0, facts)} beyond own radius"
        case "lacks_skill":
            words = f"lacks skill: {', '.join(facts.missing) or 'unknown'}"
        case "off_duty":
            words = "off duty"
        case "auto_paused":
            words = f"auto-paused after {facts.misses} missed calls in a row"
        case "off_shift":
            words = _off_shift(facts)
        case "at_limit":
            words = f"{facts.open_jobs} of {facts.max_open_jobs} open job{'' if facts.max_open_jobs == 1 else 's'}"
        case "inactive":
            words = "no longer active"
        case _:
            raise ValueError(f"unknown reason {code!r}")
    return words if len(words) <= 160 else words[:159] + "…"


def rest_words(rest: Mapping[str, int]) -> str:
    """Those beyond the considered, most first: "120 off shift, 14 off duty"; "" for nobody."""
    counted = sorted(rest.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {_IN_SUM.get(code, code)}" for code, count in counted if count)


def distance_words(metres: float, unit: str) -> str:
    """A distance in the organization's unit (`mi` or `km`): one decimal below ten, whole above."""
    value = metres / _METRES[unit]
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


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
    """The wall-clock moment at which work begins next (the zone's offset as of now), or None for no hours."""
    monday = (local_now - timedelta(days=local_now.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
    second = week_second(local_now)
    waits = [(low - second) % WEEK_S for low, _ in hours]
    if not waits:
        return None
    return monday + timedelta(seconds=second + min(waits))


def week_second(local: datetime) -> int:
    """Seconds since Monday 00:00 on the wall clock."""
    return local.weekday() * DAY_S + local.hour * 3600 + local.minute * 60 + local.second


def week_spans(shifts: Iterable[tuple[int, time, time]]) -> tuple[tuple[int, int], ...] | None:
    """Shifts (weekday from Monday = 0, starts, ends) as disjoint half-open spans of seconds of the week.

    An end at or before the start is on the next day; Sunday's night runs into Monday. None for no shifts."""
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
