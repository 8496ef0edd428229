"""When somebody may be called, on the clock of where they are: pure, from rows that were read before.

A call is permitted while *every* plausible zone of the lead is inside *every* set of hours that binds it (the
campaign's, the country's, the state's). US federal rule: 8:00 to 21:00 at the called party's location
(47 CFR 64.1200(c)(1)); several states are stricter, which is why hours are dated, editable rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from dispatch.technicians.rules import DAY_S, week_second, week_spans

# Every change of an offset that is in force anywhere happens on a quarter of an hour in UTC, so what was found
# within one quarter holds until it ends.
QUARTER = timedelta(minutes=15)
# Nobody is put off further than this in one go; a set of hours that never opens in it is closed for good.
HORIZON = timedelta(days=15)
# By how much clocks are put forward or back at once.
LONGEST_CHANGE = timedelta(hours=1)


@dataclass(frozen=True)
class Hours:
    """Spans of the local week in which calling is allowed, and the dates on which it is not at all.

    `spans`: half-open seconds since Monday 00:00 local; an end at or before its start runs into the next day, and
    belongs to the day on which it began. `closed`: local dates (holidays). `since`, `until`: the local dates from
    and to which (both inclusive) these hours bind; outside of them they allow everything."""

    name: str
    spans: tuple[tuple[int, int], ...]
    closed: frozenset[date] = frozenset()
    since: date | None = None
    until: date | None = None

    def bind(self, day: date) -> bool:
        return (self.since is None or self.since <= day) and (self.until is None or day <= self.until)

    def open_at(self, local: datetime) -> bool:
        """Whether `local` (an aware wall clock) is inside."""
        day = local.date()
        if not self.bind(day):
            return True
        if day in self.closed:
            return False
        second = week_second(local)
        return any(low <= second < high for low, high in self.spans)

    def edges(self, day: date) -> Iterable[int]:
        """The seconds of that local day at which calling may begin or end, midnight among them."""
        low = day.weekday() * DAY_S
        yield 0
        for span in self.spans:
            for edge in span:
                if low < edge < low + DAY_S:
                    yield edge - low


@dataclass(frozen=True)
class Permission:
    """What is true now: `open`, or closed because of `closed_by` (the name of the hours; `holiday`: or its day).
    Holds until `until` (aware, UTC): while open, ask again then; while closed, the first moment at which all are
    open, or None when there is none within the horizon."""

    open: bool
    until: datetime | None
    closed_by: str = ""
    zone: str = ""
    holiday: bool = False


def hours_of(
    name: str, days: Iterable[tuple[int, time, time]], closed: Iterable[date] = (), **dated: date | None
) -> Hours:
    """Hours from rows of (weekday from Monday = 0, from, to); none at all means never."""
    return Hours(name, week_spans(days) or (), frozenset(closed), **dated)


def permission(now: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> Permission:
    """Whether a lead in any of `zones` may be called now (aware), and until when that is so.

    Raises ValueError when no zone is known: without one, no hour can be called permitted."""
    if not zones:
        raise ValueError("a calling window needs at least one time zone")
    now = now.astimezone(UTC)
    closed = _closed(now, zones, bounds)
    if closed is None:
        return Permission(True, _open_until(now, zones, bounds))
    return Permission(False, _next_open(now, zones, bounds), *closed)


class Permissions:
    """`permission`, remembered for as long as each answer holds: thousands of leads share a handful of them."""

    KEPT = 10_000

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], tuple[Hours, ...]], tuple[datetime, Permission]] = {}

    def __call__(self, now: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> Permission:
        known = self._known.get((zones, bounds))
        if known is not None:
            since, found = known
            if since <= now and found.until is not None and now < found.until:
                return found
        found = permission(now, zones, bounds)
        if len(self._known) >= self.KEPT:
            self._known.clear()
        self._known[zones, bounds] = (now, found)
        return found


def _closed(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> tuple[str, str, bool] | None:
    for zone in zones:
        local = at.astimezone(ZoneInfo(zone))
        for hours in bounds:
            if not hours.open_at(local):
                return hours.name, zone, local.date() in hours.closed
    return None


def _open_until(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> datetime:
    """The next edge of any, or the end of this quarter of an hour if that comes first."""
    quarter = at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0) + QUARTER
    return min([quarter, *(edge for edge in _edges(at, zones, bounds, days=2) if edge > at)])


def _edges(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...], days: int) -> list[datetime]:
    """Every moment of the next `days` days at which something may open or close, in any zone, as UTC. Where the
    clocks are put back a wall time comes twice, and both are edges. On a day on which they change, every quarter
    is one."""
    found: set[datetime] = set()
    for zone in {ZoneInfo(name) for name in zones}:
        today = at.astimezone(zone).date()
        for ahead in range(days + 1):
            midnight = datetime.combine(today + timedelta(days=ahead), time(), zone)
            for second in {edge for hours in bounds for edge in hours.edges(midnight.date())}:
                wall = midnight + timedelta(seconds=second)
                found |= {wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1)}
            if midnight.utcoffset() != (midnight + timedelta(days=1)).utcoffset():
                start = midnight.astimezone(UTC).replace(second=0)
                start -= timedelta(minutes=start.minute % 15)
                found |= {start + quarter * QUARTER for quarter in range(100)}
    # Each zone was looked through to the end of another day of its own; only so far all of them were.
    return sorted(edge for edge in found if edge <= at + timedelta(days=days) - 2 * LONGEST_CHANGE)


def _next_open(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> datetime | None:
    """The first edge after `at` at which everything is open."""
    for days in (3, HORIZON.days):
        for edge in _edges(at, zones, bounds, days):
            if edge > at and _closed(edge, zones, bounds) is None:
                return edge
    return None
