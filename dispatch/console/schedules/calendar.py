"""A month of schedules: what ran, what is next, and what comes after that, by local day."""

from __future__ import annotations

import calendar
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count
from django.db.models.functions import TruncDate

from accounts.models import Organization
from dispatch.core import clock
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules import timing

# So many schedules are counted forward through the month; of the others only the next run is shown.
MOST_SCHEDULES, MOST_EACH = 200, 62
SHOWN_IN_A_DAY = 4


@dataclass
class Day:
    """One square. `coming`: (time, schedule) in order; `more` of them are not listed; `ran`: counts by status."""

    date: date
    in_month: bool
    is_today: bool
    coming: list[tuple[datetime, Schedule]] = field(default_factory=list)
    more: int = 0
    ran: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Month:
    """`is_whole`: False when there were too many schedules to count all of them forward."""

    first: date
    weeks: list[list[Day]]
    before: str
    after: str
    is_whole: bool


def month_of(organization: Organization, wanted: str) -> Month:
    """`wanted`: "2026-12", or anything else for the present month."""
    zone = ZoneInfo(organization.time_zone)
    now = clock.now()
    today = now.astimezone(zone).date()
    first = _first(wanted, today)
    weeks = calendar.Calendar().monthdatescalendar(first.year, first.month)
    begin, end = _midnight(weeks[0][0], zone), _midnight(weeks[-1][-1] + timedelta(days=1), zone)
    days = {day: Day(day, day.month == first.month, day == today) for week in weeks for day in week}
    is_whole = _coming(organization, days, max(begin, now), end, zone)
    _ran(organization, days, begin, min(end, now), zone)
    for day in days.values():
        day.coming.sort(key=lambda one: (one[0], one[1].pk))
        day.more = max(0, len(day.coming) - SHOWN_IN_A_DAY)
        del day.coming[SHOWN_IN_A_DAY:]
    return Month(
        first,
        [[days[day] for day in week] for week in weeks],
        f"{first - timedelta(days=1):%Y-%m}",
        f"{first + timedelta(days=31):%Y-%m}",
        is_whole,
    )


def _coming(
    organization: Organization, days: dict[date, Day], begin: datetime, end: datetime, zone: ZoneInfo
) -> bool:
    found: Any = Schedule.objects.of(organization).filter(status="active", next_at__lt=end).order_by("next_at")
    schedules = list(found[: MOST_SCHEDULES + 1])
    for schedule in schedules[:MOST_SCHEDULES]:
        at, made, seen = schedule.next_at, schedule.occurrences, 0
        while at is not None and at < end and seen < MOST_EACH:
            day = at.astimezone(zone).date()
            if at >= begin and day in days:
                days[day].coming.append((at, schedule))
            at = timing.next_after(schedule.timing, at, made)
            made, seen = made + 1, seen + 1
    return len(schedules) <= MOST_SCHEDULES


def _ran(
    organization: Organization, days: dict[date, Day], begin: datetime, end: datetime, zone: ZoneInfo
) -> None:
    ended = Run.objects.of(organization).filter(ended_at__gte=begin, trigger_at__gte=begin, trigger_at__lt=end)
    counted = ended.annotate(day=TruncDate("trigger_at", tzinfo=zone)).values_list("day", "status")
    by_day: dict[date, dict[str, int]] = defaultdict(dict)
    for day, status, count in counted.annotate(count=Count("id")).order_by():
        by_day[day][status] = count
    for day, counts in by_day.items():
        if day in days:
            days[day].ran = counts


def _first(wanted: str, today: date) -> date:
    try:
        return datetime.strptime(wanted, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        return today.replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return timing.localize(datetime.combine(day, datetime.min.time()), str(zone)).astimezone(UTC)
