"""Read the days and intervals of an iCalendar file (RFC 5545), with limits.

Canceled events are left out, and so are the original times of moved instances. Recurring events are expanded
for a window of time, by the same rules as schedules. Their additional dates (RDATE) are added. What would change
the result and is not supported, such as a change of all later instances, is refused by name.
Time zones that a file defines are not used, because their rules could take forever to evaluate: times in a zone
without a standard name have no zone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from icalendar import Calendar

from dispatch.core.languages import gettext as _
from dispatch.schedules.rules import rrules

MAX_BYTES = 256 * 1024
MAX_ENTRIES = 1000
MAX_NAME_LENGTH = 80
# Each of many short lines takes about 20 µs.
MAX_LINES = 20_000
# Steps of the expansion of all recurring events of a file (rules.rrules.Search): about half a second.
MAX_STEPS, STEPS_PER_OCCURRENCE = 1_000_000, 10
# Occurrences of recurring events are read from and until these times.
BEFORE, AHEAD = timedelta(days=31), timedelta(days=3 * 366)
# Only these properties are parsed: others may be large, and are not used.
_PROPERTIES = {
    "BEGIN", "END", "UID", "DTSTART", "DTEND", "DURATION", "RRULE", "RDATE", "EXDATE", "EXRULE", "RECURRENCE-ID",
    "SUMMARY", "STATUS",
}  # fmt: skip
_DAY = timedelta(days=1)
_FIRST, _LAST = date(1970, 1, 1), date(9000, 1, 1)


class UnreadableCalendar(ValueError):
    """The file cannot be used. The message is for users."""


def read_entries(content: str, now: datetime) -> list[list[str]]:
    """Return the entries of a calendar: [start, end, name], in order. Raises UnreadableCalendar."""
    if len(content.encode()) > MAX_BYTES:
        raise UnreadableCalendar(f"The calendar is larger than {MAX_BYTES // 1024} KB.")
    lines = _needed_lines(content)
    if len(lines) > MAX_LINES:
        raise UnreadableCalendar(f"The calendar has more than {MAX_LINES:,} lines.")
    try:
        found: Any = Calendar.from_ical("\r\n".join([*lines, ""]))
        events = list(found.walk("VEVENT"))
    except Exception as error:  # the parser raises many kinds of error
        raise UnreadableCalendar(f"This is not an iCalendar file: {str(error)[:200]}") from None
    entries: list[list[str]] = []
    search = rrules.Search(MAX_STEPS)
    for event in events:
        _check_supported(event)
    replaced = _replaced_starts(events)
    for event in events:
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            continue
        for entry in _entries_of(event, replaced.get(str(event.get("UID", "")), ()), now, search):
            entries.append(entry)
            if len(entries) > MAX_ENTRIES:
                raise UnreadableCalendar(f"The calendar has more than {MAX_ENTRIES:,} entries.")
    return sorted(entries)


def _needed_lines(content: str) -> list[str]:
    """Return the lines of the properties that are used, without definitions of time zones.

    A line that is no property is kept: the parser rejects it.
    """
    kept, depth = [], 0
    for line in re.sub(r"\r?\n[ \t]", "", content).splitlines():
        before, colon, value = line.upper().partition(":")
        name, is_zone = before.partition(";")[0].strip(), value.strip() == "VTIMEZONE"
        depth += is_zone and name == "BEGIN"
        if not depth and (name in _PROPERTIES or not colon):
            kept.append(line)
        depth -= bool(depth) and is_zone and name == "END"
    return kept


def _check_supported(event: Any) -> None:
    """Raise UnreadableCalendar for a property that would change the result, but is not supported."""
    name = _name_of(event)
    if "EXRULE" in event:
        raise UnreadableCalendar(
            _(
                "The event “{name}” has an EXRULE, which is not supported. List the excluded dates in EXDATE."
            ).format(name=name)
        )
    if "RECURRENCE-ID" not in event:
        return
    try:
        original = event["RECURRENCE-ID"]
        is_date, has_range = isinstance(original.dt, date), "RANGE" in original.params
    except Exception:  # a property that is given twice has no date; the parser raises many kinds of error
        is_date = has_range = False
    if not is_date:
        raise UnreadableCalendar(_("The event “{name}” has no usable RECURRENCE-ID.").format(name=name))
    if has_range:
        words = _(
            "The event “{name}” changes all instances from {day} on (RANGE=THISANDFUTURE), which is not "
            "supported. End the series before that day, and add another series from it on."
        )
        raise UnreadableCalendar(words.format(name=name, day=f"{original.dt:%Y-%m-%d}"))


def _name_of(event: Any) -> str:
    return " ".join(str(event.get("SUMMARY", "")).split())[:MAX_NAME_LENGTH]


def _replaced_starts(events: Iterable[Any]) -> dict[str, list[date | datetime]]:
    """Return the original starts of the instances that a separate event moves, changes or cancels, by UID."""
    replaced: dict[str, list[date | datetime]] = defaultdict(list)
    for event in events:
        uid, original = str(event.get("UID", "")), getattr(event.get("RECURRENCE-ID"), "dt", None)
        if uid and isinstance(original, date):  # without a UID, no one knows of which event it is an instance
            replaced[uid].append(original)
    return replaced


def _entries_of(
    event: Any, replaced: Collection[date | datetime], now: datetime, search: rrules.Search
) -> Iterator[list[str]]:
    name = _name_of(event)
    try:
        start = event["DTSTART"].dt
        if isinstance(start, datetime) and not isinstance(start.tzinfo, ZoneInfo | timezone | None):
            raise ValueError("unknown zone")
        length = _length(event, start)
        starts = list(_starts(event, start, replaced, length, now, search))
    except rrules.TooExpensive:
        raise UnreadableCalendar("The recurring events have too many occurrences. Remove past ones.") from None
    except rrules.InvalidRule as error:
        raise UnreadableCalendar(f"The event “{name}” has an unusable rule. {error}") from None
    except UnreadableCalendar:
        raise
    except Exception:
        raise UnreadableCalendar(f"The event “{name}” has no usable start, end or rule.") from None
    for at in starts:
        yield [_text(at), _text(at + length), name]


def _length(event: Any, start: date | datetime) -> timedelta:
    """Return the length of the event. A day without an end is a whole day."""
    if not _FIRST.year <= start.year < _LAST.year:
        raise ValueError("out of range")
    if "DTEND" in event:
        length = event["DTEND"].dt - start
    elif "DURATION" in event:
        length = event["DURATION"].dt
    else:
        length = timedelta() if isinstance(start, datetime) else _DAY
    if length < timedelta() or (start + length).year >= _LAST.year:
        raise ValueError("out of range")
    return length if isinstance(start, datetime) else max(_DAY, timedelta(days=length.days))


def _starts(
    event: Any,
    start: Any,
    replaced: Collection[date | datetime],
    length: timedelta,
    now: datetime,
    search: rrules.Search,
) -> Iterator[Any]:
    """Yield the starts of the event that matter: of a recurring event, those within the window.

    `replaced` are the starts of instances that have a separate event.
    """
    if not {"RRULE", "RDATE"} & {*event}:
        if _is_recent(start + length, now):
            yield start
        return
    search.spend(len(replaced))
    excluded = {_wall_in_zone_of(start, at) for at in (*_dates(event, "EXDATE"), *replaced)}
    for at in _added_starts(event, start, search):
        wall = _wall_in_zone_of(start, at)
        if wall not in excluded and _is_recent(at + length, now):
            excluded.add(wall)  # a date may be given twice, or match the rule, too
            yield at
    if "RRULE" in event:
        yield from _rule_starts(event, start, excluded, length, now, search)


def _added_starts(event: Any, start: Any, search: rrules.Search) -> Iterator[Any]:
    """Yield the additional dates of the event, and its start if it has no rule. Raises UnreadableCalendar."""
    if "RRULE" not in event:
        yield start
    for at in _dates(event, "RDATE"):
        search.spend(1)
        if isinstance(at, tuple):
            words = _(
                "The event “{name}” has an RDATE with a period, which is not supported. Give its start only."
            )
            raise UnreadableCalendar(words.format(name=_name_of(event)))
        if isinstance(at, datetime) is not isinstance(start, datetime):
            words = _(
                "The event “{name}” has an RDATE of another kind than its start. Give days for both, or times."
            )
            raise UnreadableCalendar(words.format(name=_name_of(event)))
        if not _FIRST.year <= at.year < _LAST.year:
            raise ValueError("out of range")
        zone = at.tzinfo if isinstance(at, datetime) else None
        if not isinstance(zone, ZoneInfo | timezone | None):
            raise ValueError("unknown zone")
        yield at if zone else _like(start, _wall(at))


def _rule_starts(
    event: Any, start: Any, excluded: Collection[datetime], length: timedelta, now: datetime, search: rrules.Search
) -> Iterator[Any]:
    """Yield the starts by the rule of the event, without those at the `excluded` wall-clock times."""
    if isinstance(event["RRULE"], list):
        raise ValueError("several rules")
    rule = rrules.read_rule(event["RRULE"].to_ical().decode())
    wall = _wall(start)
    until = rule.until
    if until is not None and until.tzinfo is not None:
        until = until.astimezone(start.tzinfo if isinstance(start, datetime) else UTC).replace(tzinfo=None)
    last = min(now.replace(tzinfo=None) + AHEAD, until or datetime.max)  # noqa: DTZ901  (compared with wall times)
    begin = wall if rule.count is not None else max(wall, now.replace(tzinfo=None) - BEFORE - length)
    times = takewhile(lambda at: at <= last, rrules.wall_times(rule.text, wall, begin, search))
    for at in islice(times, rule.count):
        search.spend(STEPS_PER_OCCURRENCE)
        moment = _like(start, at)
        if _wall(moment) not in excluded and _is_recent(moment + length, now):
            yield moment


def _dates(event: Any, name: str) -> Iterator[date | datetime]:
    given = event.get(name, [])
    for dates in given if isinstance(given, list) else [given]:
        yield from (item.dt for item in dates.dts)


def _wall_in_zone_of(start: date | datetime, at: date | datetime) -> datetime:
    """Return the wall-clock time of `at` in the zone of `start`, if both have one."""
    if isinstance(at, datetime) and isinstance(start, datetime) and at.tzinfo and start.tzinfo:
        return at.astimezone(start.tzinfo).replace(tzinfo=None)
    return _wall(at)


def _is_recent(end: date | datetime, now: datetime) -> bool:
    return _wall(end) >= now.replace(tzinfo=None) - BEFORE


def _wall(at: date | datetime) -> datetime:
    """Return the wall-clock time of a start, whatever its zone."""
    return at.replace(tzinfo=None) if isinstance(at, datetime) else datetime.combine(at, datetime.min.time())


def _like(start: date | datetime, wall: datetime) -> date | datetime:
    return wall.replace(tzinfo=start.tzinfo) if isinstance(start, datetime) else wall.date()


def _text(at: date | datetime) -> str:
    if isinstance(at, datetime) and at.tzinfo is not None:
        return at.astimezone(UTC).isoformat()
    return at.isoformat()
