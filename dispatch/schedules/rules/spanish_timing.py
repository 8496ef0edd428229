"""Describe a timing in Spanish. Its grammar differs too much from English for translated fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from dispatch.core.languages import date_words
from dispatch.schedules.rules.recurrence import CALENDAR_MONTHS, ELAPSED_S, Timing, rule_start

# Each unit with its plural.
_UNITS = {
    "second": ("segundo", "segundos"), "minute": ("minuto", "minutos"), "hour": ("hora", "horas"),
    "day": ("día", "días"), "week": ("semana", "semanas"), "month": ("mes", "meses"), "year": ("año", "años"),
}  # fmt: skip
_FREQUENCIES = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year"}
_WEEKDAYS = {"MO": "lunes", "TU": "martes", "WE": "miércoles", "TH": "jueves", "FR": "viernes", "SA": "sábado",
             "SU": "domingo"}  # fmt: skip
_MONTHS = ("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre",
           "noviembre", "diciembre")  # fmt: skip
_WORK_DAYS = ["MO", "TU", "WE", "TH", "FR"]
_ORDINALS = {1: "primer", 2: "segundo", 3: "tercer", 4: "cuarto", 5: "quinto"}
# More values than this are counted instead of listed.
MAX_LISTED = 8


def describe(timing: Timing) -> str:
    """Describe a timing: "Cada mes el día 15 a las 09:00 (America/Phoenix), 12 veces"."""
    return f"{_when(timing)} ({timing.zone}){_limits(timing)}"


def moment(at: datetime, zone: str) -> str:
    """Format a moment in this time zone: "lun 7 dic 2026, 09:00 MST"."""
    there = at.astimezone(ZoneInfo(zone))
    return f"{date_words(there, year=True)}, {_clock(there)} {there:%Z}"


def _when(timing: Timing) -> str:
    if timing.trigger_at is not None:
        return f"Una vez, {moment(timing.trigger_at, timing.zone)}"
    if timing.cron:
        return f"Según la expresión cron {timing.cron}"
    if timing.rrule:
        return describe_rule(timing.rrule, rule_start(timing))
    assert timing.every is not None
    assert timing.anchor is not None
    there = timing.anchor.astimezone(ZoneInfo(timing.zone))
    every = _every(timing.every, timing.unit)
    if timing.unit in ELAPSED_S:
        return every
    return f"{every}{_day(timing, there)} {_at(_clock(there))}"


def _every(count: int, unit: str) -> str:
    one, many = _UNITS[unit]
    return f"Cada {one}" if count == 1 else f"Cada {count} {many}"


def _day(timing: Timing, there: datetime) -> str:
    if timing.unit == "week":
        return f" el {_weekday_of(there)}"
    if timing.unit not in CALENDAR_MONTHS:
        return ""
    day = f"{there.day} de {_MONTHS[there.month - 1]}" if timing.unit == "year" else f"día {there.day}"
    shorter = there.day > 28 and (timing.unit == "month" or (there.month, there.day) == (2, 29))
    return f" el {day}" + (", o el último día de un mes más corto," if shorter else "")


def _limits(timing: Timing) -> str:
    if timing.trigger_at is not None:
        return ""
    limits = ""
    if timing.max_occurrences is not None:
        limits += f", {timing.max_occurrences} {'vez' if timing.max_occurrences == 1 else 'veces'}"
    if timing.ends_at is not None:
        limits += f", hasta {moment(timing.ends_at, timing.zone)}"
    if timing.exclusions.names:
        limits += f", excepto {' y '.join(timing.exclusions.names)}"
    return limits


def describe_rule(text: str, start: datetime) -> str:
    """Describe a canonical rule that starts at this local time: "Cada 2 meses el último viernes a las 09:00"."""
    parts: Mapping[str, list[str]] = {
        name: value.split(",") for name, _, value in (part.partition("=") for part in text.split(";"))
    }
    unit = _FREQUENCIES[parts["FREQ"][0]]
    words = _every(int(parts.get("INTERVAL", ["1"])[0]), unit) + _days(parts, unit, start)
    if months := parts.get("BYMONTH"):
        words += f" en {_list([_MONTHS[int(month) - 1] for month in months])}"
    if weeks := parts.get("BYWEEKNO"):
        words += f" en {'la semana' if len(weeks) == 1 else 'las semanas'} {_list(weeks)}"
    if positions := parts.get("BYSETPOS"):
        words += f", solo {_list([_position(int(position)) for position in positions])} de estos"
    if unit != "day" and "WKST" in parts and parts["WKST"] != ["MO"]:
        words += f", en semanas desde el {_WEEKDAYS[parts['WKST'][0]]}"
    return f"{words}{_times(parts, start)}"


def _days(parts: Mapping[str, list[str]], unit: str, start: datetime) -> str:
    phrases = []
    if days := parts.get("BYDAY"):
        phrases.append("de lunes a viernes" if days == _WORK_DAYS else _list([_weekday(day) for day in days]))
    if days := parts.get("BYMONTHDAY"):
        phrases.append(_list([_day_of_month(int(day)) for day in days]))
    if days := parts.get("BYYEARDAY"):
        phrases.append(_list([f"el día {day} del año" for day in days]))
    if not phrases and unit == "week":
        phrases.append(f"el {_weekday_of(start)}")
    if not phrases and unit == "month":
        phrases.append(f"el día {start.day}")
    if not phrases and unit == "year" and "BYWEEKNO" not in parts:
        return f" el día {start.day}" if "BYMONTH" in parts else f" el {start.day} de {_MONTHS[start.month - 1]}"
    return f" {' que sea también '.join(phrases)}" if phrases else ""


def _weekday(day: str) -> str:
    name = _WEEKDAYS[day[-2:]]
    if not day[:-2]:
        return f"el {name}"
    number = int(day[:-2])
    if number < -1:
        return f"el {_ordinal(-number)} {name} desde el final"
    return f"el último {name}" if number == -1 else f"el {_ordinal(number)} {name}"


def _ordinal(number: int) -> str:
    return _ORDINALS.get(number, f"{number}.º")


def _day_of_month(day: int) -> str:
    if day == -1:
        return "el último día"
    return f"el día {day}" if day > 0 else f"el {_ordinal(-day)} día desde el final"


def _position(number: int) -> str:
    if number == -1:
        return "el último"
    return f"el {number}.º" if number > 0 else f"el {-number}.º desde el final"


def _times(parts: Mapping[str, list[str]], start: datetime) -> str:
    hours = [int(hour) for hour in parts.get("BYHOUR", [str(start.hour)])]
    minutes = [int(minute) for minute in parts.get("BYMINUTE", [str(start.minute)])]
    times = sorted({(hour, minute) for hour in hours for minute in minutes})
    seconds = f":{start.second:02}" if start.second else ""
    if len(times) > MAX_LISTED:
        return f", {len(times)} veces al día"
    first = f"{times[0][0]:02}:{times[0][1]:02}{seconds}"
    return f" {_at(first)}" + (
        _rest([f"{hour:02}:{minute:02}{seconds}" for hour, minute in times[1:]]) if len(times) > 1 else ""
    )


def _rest(times: Sequence[str]) -> str:
    """Return the times after the first one: ", 13:00 y 17:00"."""
    return "".join(f", {time}" for time in times[:-1]) + f" y {times[-1]}"


def _at(clock: str) -> str:
    return f"a la {clock}" if clock.startswith("01:") else f"a las {clock}"


def _clock(there: datetime) -> str:
    return f"{there:%H:%M:%S}" if there.second else f"{there:%H:%M}"


def _weekday_of(there: datetime) -> str:
    return list(_WEEKDAYS.values())[there.weekday()]


def _list(words: Sequence[str]) -> str:
    if len(words) > MAX_LISTED:
        return f"{', '.join(words[:MAX_LISTED])} y {len(words) - MAX_LISTED} más"
    return " y ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
