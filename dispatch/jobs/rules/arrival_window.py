"""Arrival windows: the time between which the technician should arrive, as the customer expects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from dispatch.core.languages import clock_time, date_words, mark
from dispatch.core.languages import gettext as _

LONGEST = timedelta(hours=24)
FARTHEST = timedelta(days=366)
_WEEKDAYS = (
    mark("Monday"), mark("Tuesday"), mark("Wednesday"), mark("Thursday"), mark("Friday"), mark("Saturday"),
    mark("Sunday"),
)  # fmt: skip
_MONTHS = (
    mark("January"), mark("February"), mark("March"), mark("April"), mark("May"), mark("June"), mark("July"),
    mark("August"), mark("September"), mark("October"), mark("November"), mark("December"),
)  # fmt: skip


@dataclass(frozen=True)
class ArrivalWindow:
    """The earliest and the latest arrival, both with a time zone."""

    start: datetime
    end: datetime

    def problem(self, now: datetime) -> str:
        """Return why the window cannot be promised, or ""."""
        if self.end <= self.start:
            return mark("The arrival window must end after it starts.")
        if self.end - self.start > LONGEST:
            return mark("The arrival window must be 24 hours or shorter.")
        if self.end <= now:
            return mark("The arrival window is in the past.")
        if self.start > now + FARTHEST:
            return mark("The arrival window must start within a year.")
        return ""

    def calls_begin(self, lead_s: int) -> datetime:
        """Return when the first technician is called, `lead_s` seconds before the window."""
        return self.start - timedelta(seconds=lead_s)

    def words(self, zone: str, now: datetime) -> str:
        """Return the window as people say it: "between 2:00 PM and 4:00 PM"; on another day, with the date.

        In the local time of `zone` and in the active language.
        """
        start, end, today = (moment.astimezone(ZoneInfo(zone)) for moment in (self.start, self.end, now))
        times = {"start": clock_time(start), "end": clock_time(end)}
        if start.date() == today.date():
            return _("between {start} and {end}").format(**times)
        return _("on {date} between {start} and {end}").format(date=day_words(start), **times)

    def short_words(self, zone: str, now: datetime) -> str:
        """Return the window as the board shows it: "14:00–16:00"; on another day, "Tue, Nov 24, 14:00–16:00"."""
        start, end = (moment.astimezone(ZoneInfo(zone)) for moment in (self.start, self.end))
        times = f"{start.hour}:{start.minute:02d}–{end.hour}:{end.minute:02d}"
        is_today = start.date() == now.astimezone(ZoneInfo(zone)).date()
        return times if is_today else f"{date_words(start)}, {times}"


def local_moment(moment: datetime, zone: str, now: datetime) -> str:
    """Return a local time within a day from now as "7:00", and a later one as "Tue, Nov 24, 7:00"."""
    local = moment.astimezone(ZoneInfo(zone))
    at = f"{local.hour}:{local.minute:02d}"
    return at if moment - now < timedelta(days=1) else f"{date_words(local)}, {at}"


def day_words(local: datetime) -> str:
    """Return a date as people say it: "Tuesday, November 24"; in Spanish "martes 24 de noviembre"."""
    return _("{weekday}, {month} {day}").format(
        weekday=_(_WEEKDAYS[local.weekday()]), month=_(_MONTHS[local.month - 1]), day=local.day
    )
