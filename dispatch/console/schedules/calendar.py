"""Compute a month of schedules by local day: past runs, the next run, and later occurrences."""

from __future__ import annotations

import calendar
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import F, Q, Sum
from django.db.models.functions import TruncDate

from accounts.models import Organization
from dispatch.core import clock
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules import recurrence

# Maximum number of schedules to compute for the month, and of occurrences of each.
MAX_SCHEDULES, MAX_EACH = 200, 500
# More occurrences a day are shown as "often".
MAX_COUNTED_IN_A_DAY = 3
MAX_SHOWN_IN_A_DAY = 4
YEARS = range(2000, 2200)
_INSTANT = timedelta(microseconds=1)


@dataclass
class UpcomingRuns:
    """A schedule on one day: its first run, and the number of runs as far as computed."""

    at: datetime
    schedule: Schedule
    times: int = 1

    @property
    def is_often(self) -> bool:
        return self.times > MAX_COUNTED_IN_A_DAY


@dataclass
class Day:
    """One day. `coming`: upcoming runs in order. `more`: number of unlisted runs. `ran`: past runs by status.

    `stretches`: statuses of stretches of occurrences over several days, which are not counted by day.
    """

    date: date
    in_month: bool
    is_today: bool
    coming: list[UpcomingRuns] = field(default_factory=list)
    more: int = 0
    ran: dict[str, int] = field(default_factory=dict)
    stretches: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Month:
    """The month. `before` and `after`: the adjacent months. `is_whole`: False if there were too many schedules."""

    first: date
    weeks: list[list[Day]]
    before: str
    after: str
    is_whole: bool


def month_of(organization: Organization, wanted: str) -> Month:
    """Return the month `wanted` ("2026-12"), or the current one if it is invalid."""
    zone = ZoneInfo(organization.time_zone)
    now = clock.now()
    today = now.astimezone(zone).date()
    first = _first(wanted, today)
    weeks = calendar.Calendar().monthdatescalendar(first.year, first.month)
    begin, end = _midnight(weeks[0][0], zone), _midnight(weeks[-1][-1] + timedelta(days=1), zone)
    days = {day: Day(day, day.month == first.month, day == today) for week in weeks for day in week}
    is_whole = _add_upcoming_runs(organization, days, max(begin, now), end, zone)
    _count_past_runs(organization, days, begin, min(end, now), zone)
    for day in days.values():
        day.coming.sort(key=lambda upcoming: (upcoming.at, upcoming.schedule.pk))
        day.more = max(0, len(day.coming) - MAX_SHOWN_IN_A_DAY)
        del day.coming[MAX_SHOWN_IN_A_DAY:]
    return Month(
        first,
        [[days[day] for day in week] for week in weeks],
        f"{first - timedelta(days=1):%Y-%m}",
        f"{first + timedelta(days=31):%Y-%m}",
        is_whole,
    )


def _add_upcoming_runs(
    organization: Organization, days: dict[date, Day], begin: datetime, end: datetime, zone: ZoneInfo
) -> bool:
    rows: Any = Schedule.objects.of(organization).filter(status="active", next_at__lt=end).order_by("next_at")
    schedules = list(rows[: MAX_SCHEDULES + 1])
    done = [_add_occurrences(schedule, days, begin, end, zone) for schedule in schedules[:MAX_SCHEDULES]]
    return len(schedules) <= MAX_SCHEDULES and all(done)


def _add_occurrences(
    schedule: Schedule, days: dict[date, Day], begin: datetime, end: datetime, zone: ZoneInfo
) -> bool:
    """Add one schedule's occurrences to the days. Return whether all were added.

    The computation of a schedule with a maximum number of occurrences can't begin on a later day, because each
    occurrence counts.
    """
    at, made, when = schedule.next_at, schedule.occurrences, schedule.timing
    counts = when.max_occurrences is not None
    if at is not None and at < begin and not counts:
        at = recurrence.next_after(when, begin - _INSTANT)
    last: UpcomingRuns | None = None
    for _ in range(MAX_EACH):
        if at is None or at >= end:
            return True
        day = at.astimezone(zone).date()
        after = at
        if at >= begin and day in days:
            if last is None or last.at.astimezone(zone).date() != day:
                days[day].coming.append(last := UpcomingRuns(at, schedule))
            else:
                last.times += 1
                if last.is_often and not counts:
                    after = _midnight(day + timedelta(days=1), zone) - _INSTANT
        at = recurrence.next_after(when, after, made if counts else 0)
        made += 1
    return False


def _count_past_runs(
    organization: Organization, days: dict[date, Day], begin: datetime, end: datetime, zone: ZoneInfo
) -> None:
    ended = Run.objects.of(organization).filter(ended_at__gte=begin, trigger_at__lt=end)
    within = Q(stretch_last_at=None) | Q(first_day=F("last_day"))
    ended = ended.annotate(
        first_day=TruncDate("trigger_at", tzinfo=zone), last_day=TruncDate("stretch_last_at", tzinfo=zone)
    )
    counted = ended.filter(within, trigger_at__gte=begin).values_list("first_day", "status")
    for day, status, count in counted.annotate(count=Sum("stretch_count")).order_by():
        if day in days:
            days[day].ran[status] = count
    long = ended.filter(stretch_last_at__gte=begin).exclude(first_day=F("last_day"))
    for first, last, status in long.values_list("first_day", "last_day", "status").distinct().order_by():
        for day in days.keys() & _days(max(first, min(days)), min(last, max(days))):
            days[day].stretches.add(status)


def _days(first: date, last: date) -> set[date]:
    return {first + timedelta(days=n) for n in range((last - first).days + 1)}


def _first(wanted: str, today: date) -> date:
    try:
        first = datetime.strptime(wanted, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        return today.replace(day=1)
    return first if first.year in YEARS else today.replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return recurrence.localize(datetime.combine(day, datetime.min.time()), str(zone)).astimezone(UTC)
