"""Decide when a report by email is due, and which days it covers. Pure functions."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

DAILY, WEEKLY, MONTHLY = "daily", "weekly", "monthly"


def next_due(frequency: str, hour: int, zone: str, after: datetime) -> datetime:
    """Return the first moment of a report later than `after` (aware), in UTC.

    An hour that the clock skips in spring is the one after it; of a doubled hour in autumn, the first counts.
    """
    day = _last_day(frequency, after.astimezone(ZoneInfo(zone)).date())
    while (moment := _moment(day, hour, zone)) <= after:
        day = _following(frequency, day)
    return moment


def last_due(frequency: str, hour: int, zone: str, at: datetime) -> datetime:
    """Return the last moment of a report that is not later than `at` (aware), in UTC."""
    day = _last_day(frequency, at.astimezone(ZoneInfo(zone)).date())
    moment = _moment(day, hour, zone)
    return moment if moment <= at else _moment(_last_day(frequency, day - timedelta(days=1)), hour, zone)


def covered_days(frequency: str, due_at: datetime, zone: str) -> tuple[date, date]:
    """Return the first and last day of the report that is due then: the day, week or month that ended before."""
    day = due_at.astimezone(ZoneInfo(zone)).date()
    last = day - timedelta(days=1)
    if frequency == WEEKLY:
        return day - timedelta(days=7), last
    return (last.replace(day=1), last) if frequency == MONTHLY else (last, last)


def _last_day(frequency: str, day: date) -> date:
    """Return the last day of a report that is not later than `day`."""
    if frequency == WEEKLY:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if frequency == MONTHLY else day


def _following(frequency: str, day: date) -> date:
    if frequency == WEEKLY:
        return day + timedelta(days=7)
    return (day + timedelta(days=32)).replace(day=1) if frequency == MONTHLY else day + timedelta(days=1)


def _moment(day: date, hour: int, zone: str) -> datetime:
    return datetime.combine(day, time(hour), ZoneInfo(zone)).astimezone(UTC)
