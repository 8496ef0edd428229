"""Describe a recurrence rule in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

_UNITS = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year"}
_WEEKDAYS = {"MO": "Monday", "TU": "Tuesday", "WE": "Wednesday", "TH": "Thursday", "FR": "Friday",
             "SA": "Saturday", "SU": "Sunday"}  # fmt: skip
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_WORK_DAYS = ["MO", "TU", "WE", "TH", "FR"]
_SUFFIX = {1: "st", 2: "nd", 3: "rd"}
# More values than this are counted instead of listed.
MAX_LISTED = 8


def ordinal(number: int) -> str:
    """Format an ordinal number: 1st, 2nd, 3rd, 4th, 11th, 21st; -1 is the last, -2 the 2nd to last."""
    if number == -1:
        return "last"
    if number < 0:
        return f"{ordinal(-number)} to last"
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else _SUFFIX.get(number % 10, 'th')}"


def describe_rule(text: str, start: datetime) -> str:
    """Describe a canonical rule that starts at this wall-clock time.

    Example: "Every 2 months on the last Friday at 09:00 and 17:00".
    """
    parts: Mapping[str, list[str]] = {
        name: value.split(",") for name, _, value in (part.partition("=") for part in text.split(";"))
    }
    unit, every = _UNITS[parts["FREQ"][0]], int(parts.get("INTERVAL", ["1"])[0])
    words = f"Every {unit}" if every == 1 else f"Every {every} {unit}s"
    words += _days(parts, unit, start)
    if months := parts.get("BYMONTH"):
        words += f" in {_list([_MONTHS[int(month) - 1] for month in months])}"
    if weeks := parts.get("BYWEEKNO"):
        words += f" in week{'' if len(weeks) == 1 else 's'} {_list(weeks)}"
    if positions := parts.get("BYSETPOS"):
        words += f", only the {_list([ordinal(int(position)) for position in positions])} of these"
    if unit != "day" and "WKST" in parts and parts["WKST"] != ["MO"]:
        words += f", in weeks from {_WEEKDAYS[parts['WKST'][0]]}"
    return f"{words}{_times(parts, start)}"


def _days(parts: Mapping[str, list[str]], unit: str, start: datetime) -> str:
    phrases = []
    if days := parts.get("BYDAY"):
        phrases.append("weekdays" if days == _WORK_DAYS else _list([_weekday(day) for day in days]))
    if days := parts.get("BYMONTHDAY"):
        phrases.append(_list([f"the {_day_of_month(int(day))}" for day in days]))
    if days := parts.get("BYYEARDAY"):
        phrases.append(_list([f"the {ordinal(int(day))} day of the year" for day in days]))
    if not phrases and unit == "week":
        phrases.append(f"{start:%A}")
    if not phrases and unit == "month":
        phrases.append(f"the {ordinal(start.day)}")
    if not phrases and unit == "year" and "BYWEEKNO" not in parts:
        return f" on the {ordinal(start.day)}" if "BYMONTH" in parts else f" on {start:%B} {start.day}"
    return f" on {' that are also '.join(phrases)}" if phrases else ""


def _weekday(day: str) -> str:
    name = _WEEKDAYS[day[-2:]]
    return f"the {ordinal(int(day[:-2]))} {name}" if day[:-2] else name


def _day_of_month(day: int) -> str:
    return ordinal(day) if day > 0 else f"{ordinal(day)} day"


def _times(parts: Mapping[str, list[str]], start: datetime) -> str:
    hours = [int(hour) for hour in parts.get("BYHOUR", [str(start.hour)])]
    minutes = [int(minute) for minute in parts.get("BYMINUTE", [str(start.minute)])]
    times = sorted({(hour, minute) for hour in hours for minute in minutes})
    seconds = f":{start.second:02}" if start.second else ""
    if len(times) > MAX_LISTED:
        return f", {len(times)} times a day"
    return f" at {_list([f'{hour:02}:{minute:02}{seconds}' for hour, minute in times])}"


def _list(words: Sequence[str]) -> str:
    if len(words) > MAX_LISTED:
        return f"{', '.join(words[:MAX_LISTED])} and {len(words) - MAX_LISTED} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
