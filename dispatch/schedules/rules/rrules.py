"""Read recurrence rules (RFC 5545, RRULE) and compute their wall-clock times.

The frequency is daily or longer, so that a rule cannot flood; times within a day are lists of hours and minutes.
COUNT and UNTIL are split off: a schedule's own limits do the same. Only times that match the rule count, so the
start is not an occurrence by itself.

The rule is evaluated by dateutil, from a start that is moved forward in whole intervals: the cost of the next time
does not grow with the age of the schedule. A search that finds nothing within MAX_DAYS days ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Any

from dateutil.rrule import rrulestr

from dispatch.core.languages import gettext as _

FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
MAX_LENGTH, MAX_VALUES, MAX_INTERVAL, MAX_COUNT = 500, 100, 1000, 2**31 - 1
# Days that a search may look at before the next match: leap days are up to eight years apart.
MAX_DAYS = 9 * 366
STEPS_PER_DAY = 4
FIRST_YEAR = 1970
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
# Part → the smallest and largest value, and whether it counts from the end if negative.
_NUMBERS: Mapping[str, tuple[int, int, bool]] = {
    "BYMONTH": (1, 12, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYSETPOS": (1, 366, True),
    "BYHOUR": (0, 23, False),
    "BYMINUTE": (0, 59, False),
}
_TIME_PARTS = ("BYHOUR", "BYMINUTE")
_DAY_PARTS = ("BYDAY", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO")
# Parts that the RFC allows only with these frequencies.
_ONLY_WITH = {"BYWEEKNO": ("YEARLY",), "BYYEARDAY": ("YEARLY",), "BYMONTHDAY": ("DAILY", "MONTHLY", "YEARLY")}
_ORDER = ("FREQ", "INTERVAL", "BYMONTH", "BYWEEKNO", "BYYEARDAY", "BYMONTHDAY", "BYDAY", "BYHOUR", "BYMINUTE",
          "BYSETPOS", "WKST")  # fmt: skip
_DAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_UNTIL = re.compile(r"\d{8}(T\d{6}Z?)?")


class InvalidRule(ValueError):
    """The rule cannot be used. The message is for users."""


@dataclass(frozen=True)
class Rule:
    """A rule without its limits. `until` is a wall-clock time, or a moment if it is aware."""

    text: str
    count: int | None = None
    until: datetime | None = None


class _SearchEnded(Exception):
    """No match within MAX_DAYS days."""


class Search:
    """The limits of a search: MAX_DAYS days before each match, and `steps` in all (None: no limit).

    A day that is looked at is a step, or several. Several rules can share one search.
    """

    def __init__(self, steps: int | None = None) -> None:
        self._days, self._steps = MAX_DAYS, steps

    def look(self, steps: int) -> None:
        """Count a day. Raises _SearchEnded after MAX_DAYS."""
        self.spend(steps)
        self._days -= 1
        if self._days < 0:
            raise _SearchEnded

    def spend(self, steps: int) -> None:
        """Count steps. Raises TooExpensive if none are left."""
        if self._steps is not None:
            self._steps -= steps
            if self._steps < 0:
                raise TooExpensive

    def restart(self) -> None:
        """Begin the search for the next match."""
        self._days = MAX_DAYS


class TooExpensive(Exception):
    """A search took all of its steps."""


class _Counted(tuple[int, ...]):
    """The months or weekdays of a rule. dateutil asks for each day that it looks at, so days are counted here."""

    search: Search
    steps: int

    def __contains__(self, value: object) -> bool:
        self.search.look(self.steps)
        return super().__contains__(value)


def read_rule(text: str) -> Rule:
    """Return the rule in its canonical form, with COUNT and UNTIL apart. Raises InvalidRule."""
    if len(text) > MAX_LENGTH:
        raise InvalidRule(_("Must be at most {most} characters.").format(most=MAX_LENGTH))
    given: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").strip(";").split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            unknown = _("“{part}” is not a part of a rule. Example: FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9")
            raise InvalidRule(unknown.format(part=part))
        if name in given:
            raise InvalidRule(_("{name} is given twice.").format(name=name))
        given[name] = value
    count, until = given.pop("COUNT", None), given.pop("UNTIL", None)
    if count is not None and until is not None:
        raise InvalidRule(_("Set either COUNT or UNTIL, not both."))
    parts = {name: _read_part(name, value) for name, value in given.items()}
    _check_together(parts)
    text = ";".join(f"{name}={parts[name]}" for name in _ORDER if name in parts)
    return Rule(text, _read_count(count), _read_until(until))


def wall_times(text: str, start: datetime, after: datetime, search: Search | None = None) -> Iterator[datetime]:
    """Yield the wall-clock times of the rule from `start` on, in order, beginning at or before `after`.

    All are naive. Ends if the next match is more than MAX_DAYS days away. Raises TooExpensive if `search` has a
    limit.
    """
    parts, start, search = _parts(text), start.replace(microsecond=0), search or Search()
    # The days are computed apart from their times: there may be 1,440 times in each of hundreds of days before
    # `after`. BYSETPOS chooses among both together; then there are few.
    are_apart = "BYSETPOS" not in parts
    searched = {name: parts[name] for name in parts if not (are_apart and name in _TIME_PARTS)}
    first, times = _move_forward(parts, start, after), _times_of_day(parts, start)
    first = datetime.combine(first, time()) if are_apart else first
    rule: Any = rrulestr(_with_defaults(searched, start), dtstart=first, cache=False)
    if _counts_weeks_of_year(parts):  # months would change what is counted
        rule._byweekday = looked_at = _Counted(range(7))
    else:
        rule._bymonth = looked_at = _Counted(rule._bymonth or range(1, 13))
    looked_at.search = search
    # For a daily rule, dateutil prepares each day separately.
    looked_at.steps = STEPS_PER_DAY + int(parts.get("INTERVAL", "1")) // 50 if parts["FREQ"] == "DAILY" else 1
    search.restart()
    try:
        for at in rule:
            search.restart()
            if not are_apart:
                yield at
            elif at.date() >= after.date():
                yield from (moment for each in times if (moment := datetime.combine(at, each)) >= start)
    except _SearchEnded:
        return


def _times_of_day(parts: Mapping[str, str], start: datetime) -> list[time]:
    """Return the times of each day of the rule, in order; the start gives what the rule does not name."""
    hours, minutes = (
        sorted({int(value) for value in parts[name].split(",")}) if name in parts else [given]
        for name, given in (("BYHOUR", start.hour), ("BYMINUTE", start.minute))
    )
    return [time(hour, minute, start.second) for hour in hours for minute in minutes]


def _read_part(name: str, value: str) -> str:
    if name == "FREQ":
        if value not in FREQUENCIES:
            raise InvalidRule(
                _(
                    "FREQ must be one of {frequencies}. For times within a day, set BYHOUR and BYMINUTE, or use "
                    "an interval."
                ).format(frequencies=", ".join(FREQUENCIES))
            )
        return value
    if name == "INTERVAL":
        return str(_read_number(name, value, 1, MAX_INTERVAL, negative=False))
    if name == "WKST":
        if value not in WEEKDAYS:
            raise InvalidRule(_("WKST must be one of {weekdays}.").format(weekdays=", ".join(WEEKDAYS)))
        return value
    values = [piece.strip() for piece in value.split(",")]
    if len(values) > MAX_VALUES:
        raise InvalidRule(_("{name} must have at most {most} values.").format(name=name, most=MAX_VALUES))
    if name == "BYDAY":
        return ",".join(map(_read_day, values))
    if name not in _NUMBERS:
        raise InvalidRule(_("{name} is not supported.").format(name=name))
    smallest, largest, negative = _NUMBERS[name]
    return ",".join(str(_read_number(name, piece, smallest, largest, negative=negative)) for piece in values)


def _read_number(name: str, value: str, smallest: int, largest: int, *, negative: bool) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", value) or not smallest <= (number := int(value)) <= largest:
        if negative and re.fullmatch(r"-[0-9]{1,3}", value) and smallest <= -int(value) <= largest:
            return int(value)
        end = f", or from -{largest} to -{smallest}" if negative else ""
        raise InvalidRule(
            _("{name} must be from {smallest} to {largest}{end}.").format(
                name=name, smallest=smallest, largest=largest, end=end
            )
        )
    return number


def _read_day(value: str) -> str:
    found = _DAY.fullmatch(value)
    if found is None or (found[1] is not None and not 1 <= abs(int(found[1])) <= 53):
        wrong = _("BYDAY must be weekdays such as MO, 1MO (the first) or -1FR (the last), not {value}.")
        raise InvalidRule(wrong.format(value=value[:20]))
    return f"{int(found[1]) if found[1] else ''}{found[2]}"


def _read_count(value: str | None) -> int | None:
    return None if value is None else _read_number("COUNT", value, 1, MAX_COUNT, negative=False)


def _read_until(value: str | None) -> datetime | None:
    """Return the end. A date means the end of that day."""
    if value is None:
        return None
    try:
        if not _UNTIL.fullmatch(value):
            raise ValueError
        if len(value) == 8:
            return datetime.strptime(value, "%Y%m%d").replace(hour=23, minute=59, second=59)  # noqa: DTZ007  (local)
        at = datetime.strptime(value[:15], "%Y%m%dT%H%M%S")  # noqa: DTZ007  (local, unless it ends with Z)
    except ValueError:
        raise InvalidRule(_("UNTIL must be a date or a time such as 20271231 or 20271231T170000Z.")) from None
    return at.replace(tzinfo=UTC) if value.endswith("Z") else at


def _check_together(parts: Mapping[str, str]) -> None:
    frequency = parts.get("FREQ")
    if frequency is None:
        raise InvalidRule(_("FREQ is missing: {frequencies}.").format(frequencies=", ".join(FREQUENCIES)))
    for name, frequencies in _ONLY_WITH.items():
        if name in parts and frequency not in frequencies:
            raise InvalidRule(
                _("{name} is not allowed with FREQ={frequency}.").format(name=name, frequency=frequency)
            )
    numbered = any(day[:-2] for day in parts.get("BYDAY", "").split(",") if day)
    if numbered and any(day in WEEKDAYS for day in parts["BYDAY"].split(",")):
        raise InvalidRule(_("Weekdays with and without a number cannot be combined in BYDAY."))
    if numbered and (frequency not in ("MONTHLY", "YEARLY") or "BYWEEKNO" in parts):
        raise InvalidRule(
            _("Numbered weekdays in BYDAY are allowed only with MONTHLY and YEARLY, without BYWEEKNO.")
        )
    if numbered and frequency == "YEARLY" and "BYMONTH" not in parts and {"BYMONTHDAY", "BYYEARDAY"} & set(parts):
        raise InvalidRule(_("Numbered weekdays of a year cannot be combined with other days. Set BYMONTH."))
    if "BYSETPOS" in parts and not (set(parts) - {"FREQ", "INTERVAL", "WKST", "BYSETPOS"}):
        raise InvalidRule(_("BYSETPOS chooses among the times of other parts. Add one, such as BYDAY."))


@lru_cache(maxsize=4096)
def _parts(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(";"))


def _counts_weeks_of_year(parts: Mapping[str, str]) -> bool:
    return parts["FREQ"] == "YEARLY" and any(day[:-2] for day in parts.get("BYDAY", "").split(",") if day)


def _with_defaults(parts: Mapping[str, str], start: datetime) -> str:
    """Return the rule with the days that the RFC takes from the start, so that the start can be moved."""
    added: dict[str, str] = {}
    if not set(parts) & set(_DAY_PARTS):
        if parts["FREQ"] == "WEEKLY":
            added["BYDAY"] = WEEKDAYS[start.weekday()]
        elif parts["FREQ"] in ("MONTHLY", "YEARLY"):
            added["BYMONTHDAY"] = str(start.day)
            if parts["FREQ"] == "YEARLY" and "BYMONTH" not in parts:
                added["BYMONTH"] = str(start.month)
    return ";".join(f"{name}={value}" for name, value in {**parts, **added}.items())


def _move_forward(parts: Mapping[str, str], start: datetime, after: datetime) -> datetime:
    """Return the start of an interval of the rule shortly before `after`, or `start` if that is later.

    The intervals are counted from the start, and the time of day stays.
    """
    start = start.replace(microsecond=0)
    every, frequency = int(parts.get("INTERVAL", "1")), parts["FREQ"]
    if frequency in ("DAILY", "WEEKLY"):
        days = every * (7 if frequency == "WEEKLY" else 1)
        steps = (after.date() - start.date()).days // days - 1
        return start + timedelta(days=steps * days) if steps > 0 else start
    months = every * (12 if frequency == "YEARLY" else 1)
    first_month = 0 if frequency == "YEARLY" else start.month - 1
    steps = ((after.year - start.year) * 12 + after.month - 1 - first_month) // months - 1
    if steps <= 0:
        return start
    year, month = divmod(start.year * 12 + first_month + steps * months, 12)
    return start.replace(year=year, month=month + 1, day=1)
