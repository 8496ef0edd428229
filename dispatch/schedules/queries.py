"""Compute the coming occurrences of schedules, across clock changes, within limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice, takewhile

from accounts.models import Organization
from dispatch.schedules.models import Schedule
from dispatch.schedules.rules import recurrence

# Maximum number of occurrences in one answer, of schedules of which they are computed, and of occurrences of each.
MAX_OCCURRENCES, MAX_SCHEDULES, MAX_EACH = 1000, 500, 100


@dataclass(frozen=True)
class Coming:
    """Occurrences in order. `is_whole`: False if there are more than were computed."""

    occurrences: list[tuple[datetime, Schedule]]
    is_whole: bool


def occurrences_until(schedule: Schedule, until: datetime) -> Iterator[datetime]:
    """Yield the times of an active schedule before `until`, beginning with its waiting run."""
    if schedule.next_at is None or schedule.status != Schedule.Status.ACTIVE or schedule.next_at >= until:
        return
    yield schedule.next_at
    later = recurrence.occurrences(schedule.timing, schedule.next_at, schedule.occurrences)
    yield from takewhile(lambda at: at < until, later)


def coming_of_schedule(schedule: Schedule, until: datetime) -> Coming:
    """Return the occurrences of a schedule before `until`, at most MAX_OCCURRENCES."""
    return _limited((at, schedule) for at in occurrences_until(schedule, until))


def coming_of_organization(organization: Organization, until: datetime) -> Coming:
    """Return the next occurrences of the organization's schedules before `until`, at most MAX_OCCURRENCES.

    At most MAX_EACH are of the same schedule, so that a frequent one leaves room for others.
    """
    active = Schedule.objects.of(organization).filter(status=Schedule.Status.ACTIVE, next_at__lt=until)
    schedules = list(active.defer("headers", "payload").order_by("next_at", "pk")[: MAX_SCHEDULES + 1])
    each = (_occurrences(schedule, until) for schedule in schedules[:MAX_SCHEDULES])
    coming = _limited(merge(*each, key=lambda item: (item[0], item[1].pk)))
    counts = Counter(schedule.pk for _, schedule in coming.occurrences)
    is_whole = coming.is_whole and len(schedules) <= MAX_SCHEDULES and max(counts.values(), default=0) < MAX_EACH
    return Coming(coming.occurrences, is_whole)


def _occurrences(schedule: Schedule, until: datetime) -> Iterator[tuple[datetime, Schedule]]:
    return ((at, schedule) for at in islice(occurrences_until(schedule, until), MAX_EACH))


def _limited(items: Iterator[tuple[datetime, Schedule]]) -> Coming:
    found = list(islice(items, MAX_OCCURRENCES + 1))
    return Coming(found[:MAX_OCCURRENCES], len(found) <= MAX_OCCURRENCES)
