"""Read the period of a report from the URL: days of the organization's time zone, and the period before them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.formats import date_format

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import is_english

SPANS = (7, 14, 30, 90)
DEFAULT_SPAN = 14
MAX_SPAN = 366
# Moments of other years cannot be computed in every time zone.
FIRST_YEAR, LAST_YEAR = 2000, 2999


@dataclass(frozen=True)
class Period:
    """The days from `first` to `last`, inclusive, in the time zone `zone`."""

    first: date
    last: date
    zone: str

    @property
    def count(self) -> int:
        """How many days it has."""
        return (self.last - self.first).days + 1

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=n) for n in range(self.count)]

    @property
    def since(self) -> datetime:
        """When the first day begins, in UTC."""
        return self._midnight(self.first)

    @property
    def until(self) -> datetime:
        """When the last day has ended, in UTC."""
        return self._midnight(self.last + timedelta(days=1))

    @property
    def previous(self) -> Period:
        """The period of as many days that ends the day before this one."""
        return Period(self.first - timedelta(days=self.count), self.first - timedelta(days=1), self.zone)

    @property
    def words(self) -> str:
        """The days in the active language, such as "Nov 9, 2026 to Nov 22, 2026"."""
        if self.count == 1:
            return write_day(self.first)
        return _("{first} to {last}").format(first=write_day(self.first), last=write_day(self.last))

    @property
    def query(self) -> str:
        """The period as the query of a URL, without the question mark."""
        return f"from={self.first}&to={self.last}"

    def _midnight(self, day: date) -> datetime:
        return datetime.combine(day, time(), ZoneInfo(self.zone)).astimezone(UTC)


def write_day(day: date) -> str:
    """Return a date in the active language: "Nov 9, 2026", in Spanish "9 nov 2026"."""
    if is_english():
        return f"{day:%b} {day.day}, {day.year}"
    return date_format(day, "j M Y").lower()


def today_in(organization: Organization) -> date:
    """Return the current day in the organization's time zone."""
    return clock.now().astimezone(ZoneInfo(organization.time_zone)).date()


def read_period(organization: Organization, query: Any) -> Period:
    """Return the days in the URL: `?from=2026-01-01&to=2026-01-31`, or the last `?days=14`.

    Invalid values fall back to the default.
    """
    zone = organization.time_zone
    try:
        first, last = date.fromisoformat(query.get("from", "")), date.fromisoformat(query.get("to", ""))
        if first <= last and (last - first).days < MAX_SPAN and is_possible(first) and is_possible(last):
            return Period(first, last, zone)
    except ValueError:
        pass
    asked = read_id(query.get("days"))
    days = DEFAULT_SPAN if asked is None else min(max(asked, 1), MAX_SPAN)
    today = today_in(organization)
    return Period(today - timedelta(days=days - 1), today, zone)


def is_possible(day: date) -> bool:
    """Return whether the day is so far from the ends of the calendar that one can calculate with it."""
    return FIRST_YEAR <= day.year <= LAST_YEAR
