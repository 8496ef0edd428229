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

# So many schedules are counted forward through the month, and of each so many occurrences.
MOST_SCHEDULES, MOST_EACH = 200, 500
# More than so many times a day is "often".
COUNTED_IN_A_DAY = 3
SHOWN_IN_A_DAY = 4
YEARS = range(2000, 2200)
_INSTANT = timedelta(microseconds=1)


@dataclass
class Coming:
    """A schedule on one day: when it runs first, and how often as far as that was counted."""

    at: datetime
    schedule: Schedule
    times: int = 1

    @property
    def is_often(self) -> bool:
        return self.times > COUNTED_IN_A_DAY


@dataclass
class Day:
    """One square. `coming`: what runs, in order; `more` of them are not listed; `ran`: counts by status."""

    date: date
    in_month: bool
    is_today: bool
    coming: list[Coming] = field(default_factory=list)
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
        day.coming.sort(key=lambda one: (one.at, one.schedule.pk))
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
    done = [_forward(schedule, days, begin, end, zone) for schedule in schedules[:MOST_SCHEDULES]]
    return len(schedules) <= MOST_SCHEDULES and all(done)


def _forward(schedule: Schedule, days: dict[date, Day], begin: datetime, end: datetime, zone: ZoneInfo) -> bool:
    """Enters one schedule into the days; whether all of it. One with a number of occurrences cannot be looked up
    for a later day: each has to be gone through."""
    at, made, when = schedule.next_at, schedule.occurrences, schedule.timing
    counts = when.max_occurrences is not None
    if at is not None and at < begin and not counts:
        at = timing.next_after(when, begin - _INSTANT)
    last: Coming | None = None
    for _ in range(MOST_EACH):
        if at is None or at >= end:
            return True
        day = at.astimezone(zone).date()
        after = at
        if at >= begin and day in days:
            if last is None or last.at.astimezone(zone).date() != day:
                days[day].coming.append(last := Coming(at, schedule))
            else:
                last.times += 1
                if last.is_often and not counts:
                    after = _midnight(day + timedelta(days=1), zone) - _INSTANT
        at = timing.next_after(when, after, made if counts else 0)
        made += 1
    return False


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
        found = datetime.strptime(wanted, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        return today.replace(day=1)
    return found if found.year in YEARS else today.replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return timing.localize(datetime.combine(day, datetime.min.time()), str(zone)).astimezone(UTC)
