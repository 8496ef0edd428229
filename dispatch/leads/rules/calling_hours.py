"""Decide, in pure functions, when a person may be called, in their local time.

A call is permitted while *every* plausible zone of the lead is inside *every* set of hours that applies to it (the
campaign's, the country's, the state's). US federal rule: 8:00 to 21:00 at the called party's location (47 CFR
64.1200(c)(1)). Several states are stricter, so hours are dated, editable rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from dispatch.technicians.rules import DAY_S, week_second, week_spans

# All changes of UTC offsets in force happen on a quarter of an hour in UTC, so a result is valid until the end of
# its quarter.
QUARTER = timedelta(minutes=15)
# Maximum of a clock change.
MAX_CHANGE = timedelta(hours=1)
# How far the next opening is searched: `_edges` of this many days leave out their last hours.
HORIZON_DAYS = 15
HORIZON = timedelta(days=HORIZON_DAYS) - 2 * MAX_CHANGE


@dataclass(frozen=True)
class Hours:
    """Spans of the local week in which calling is allowed, and dates on which it is not allowed at all.

    `spans`: half-open seconds since Monday 00:00 local; an end at or before its start runs into the next day, and
    belongs to the day on which it began. `closed`: local dates (holidays). `since`, `until`: the first and the
    last local date on which these hours apply; on other dates they allow everything.
    """

    name: str
    spans: tuple[tuple[int, int], ...]
    closed: frozenset[date] = frozenset()
    since: date | None = None
    until: date | None = None

    def bind(self, day: date) -> bool:
        return (self.since is None or self.since <= day) and (self.until is None or day <= self.until)

    def open_at(self, local: datetime) -> bool:
        """Return whether these hours allow calls at `local`, an aware wall-clock time."""
        day = local.date()
        if not self.bind(day):
            return True
        if day in self.closed:
            return False
        second = week_second(local)
        return any(low <= second < high for low, high in self.spans)

    def edges(self, day: date) -> Iterable[int]:
        """Return the seconds of that local day at which calling may begin or end, including midnight."""
        low = day.weekday() * DAY_S
        yield 0
        for span in self.spans:
            for edge in span:
                if low < edge < low + DAY_S:
                    yield edge - low


@dataclass(frozen=True)
class Permission:
    """A permission to call, or its refusal, and until when it is valid.

    `open`: calling is permitted. If not, `closed_by` is the name of the hours that forbid it, `zone` the time zone
    in which they do, and `holiday` whether they do so because of the date. `until` (aware, UTC): if open, when to
    check again; if closed, the first moment at which all hours are open, or None if there is none within the
    horizon.
    """

    open: bool
    until: datetime | None
    closed_by: str = ""
    zone: str = ""
    holiday: bool = False


def hours_of(
    name: str, days: Iterable[tuple[int, time, time]], closed: Iterable[date] = (), **dated: date | None
) -> Hours:
    """Build hours from rows of (weekday from Monday = 0, from, to). Without rows, the hours never open."""
    return Hours(name, week_spans(days) or (), frozenset(closed), **dated)


def calling_permission(now: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> Permission:
    """Return whether a lead in any of `zones` may be called now (aware), and until when that is valid.

    Raises ValueError if no zone is known, because then no hour can be permitted.
    """
    if not zones:
        raise ValueError("a calling window needs at least one time zone")
    now = now.astimezone(UTC)
    closed = _closed(now, zones, bounds)
    if closed is None:
        return Permission(True, _open_until(now, zones, bounds))
    return Permission(False, _next_open(now, zones, bounds), *closed)


class PermissionCache:
    """Caches the results of `calling_permission` as long as they are valid: thousands of leads share a few.

    Without `until`, a result is valid only for its moment, which the leads of a batch share.
    """

    KEPT = 10_000

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[datetime, Permission]] = {}

    def __call__(self, now: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> Permission:
        lasting, momentary = (zones, bounds), (zones, bounds, now)
        for key in (lasting, momentary):
            cached = self._known.get(key)
            if cached is not None and _is_valid(*cached, now):
                return cached[1]
        permission = calling_permission(now, zones, bounds)
        if len(self._known) >= self.KEPT:
            self._known.clear()
        self._known[lasting if permission.until is not None else momentary] = (now, permission)
        return permission


class LocalHours:
    """The hours that apply to all leads in one place, in its time zones, and the last permission for them."""

    def __init__(self, zones: tuple[str, ...], bounds: tuple[Hours, ...], permissions: PermissionCache) -> None:
        self.zones, self.bounds = zones, bounds
        self._permissions = permissions
        self._last: tuple[datetime, Permission] | None = None

    def permission(self, at: datetime) -> Permission:
        """Return whether a lead in the place may be called at that moment, as `calling_permission` does."""
        if self._last is not None and _is_valid(*self._last, at):
            return self._last[1]
        permission = self._permissions(at, self.zones, self.bounds)
        self._last = (at, permission)
        return permission


def _is_valid(since: datetime, permission: Permission, at: datetime) -> bool:
    """Return whether a permission that was determined for `since` is valid at that moment.

    Hours that do not open within the horizon after `since` may open within the horizon after another moment.
    """
    return since <= at < permission.until if permission.until is not None else at == since


def _closed(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> tuple[str, str, bool] | None:
    for zone in zones:
        local = at.astimezone(ZoneInfo(zone))
        for hours in bounds:
            if not hours.open_at(local):
                return hours.name, zone, local.date() in hours.closed
    return None


def _open_until(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> datetime:
    """Return the next edge of any hours, or the end of this quarter of an hour if that is earlier."""
    quarter = at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0) + QUARTER
    return min([quarter, *(edge for edge in _edges(at, zones, bounds, days=2) if edge > at)])


def _edges(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...], days: int) -> list[datetime]:
    """Return every moment of the next `days` days at which any hours may open or close, in any zone, as UTC.

    When clocks are set back, a wall time occurs twice, and both are edges. On a day of a clock change, every
    quarter of an hour is an edge.
    """
    edges: set[datetime] = set()
    for zone in {ZoneInfo(name) for name in zones}:
        today = at.astimezone(zone).date()
        for ahead in range(days + 1):
            midnight = datetime.combine(today + timedelta(days=ahead), time(), zone)
            for second in {edge for hours in bounds for edge in hours.edges(midnight.date())}:
                wall = midnight + timedelta(seconds=second)
                edges |= {wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1)}
            if midnight.utcoffset() != (midnight + timedelta(days=1)).utcoffset():
                start = midnight.astimezone(UTC).replace(second=0)
                start -= timedelta(minutes=start.minute % 15)
                edges |= {start + quarter * QUARTER for quarter in range(100)}
    # The search in each zone ends at a different moment. Only edges in the time that all cover are returned.
    return sorted(edge for edge in edges if edge <= at + timedelta(days=days) - 2 * MAX_CHANGE)


def _next_open(at: datetime, zones: tuple[str, ...], bounds: tuple[Hours, ...]) -> datetime | None:
    """Return the first edge after `at` at which all hours are open."""
    for days in (3, HORIZON_DAYS):
        for edge in _edges(at, zones, bounds, days):
            if edge > at and _closed(edge, zones, bounds) is None:
                return edge
    return None
