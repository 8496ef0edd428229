"""Serve an organization's coming runs as an iCalendar file (RFC 5545), by a signed link.

Each occurrence is an event without a duration, in UTC, so that clients need no time zone definitions. Payloads are
not in the feed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from accounts.auth import throttling
from accounts.models import Organization
from dispatch.core import clock
from dispatch.jobs.public.common import with_signed_link
from dispatch.schedules import kinds
from dispatch.schedules.models import Schedule, ScheduleFeed
from dispatch.schedules.queries import coming_of_organization
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services.feeds import feed_of

DAYS = 31
# Requests for one feed. Calendar programs poll every few minutes at most.
RATE = throttling.parse_rate("30/min")
# The maximum length of a line in bytes, without its end.
LINE_BYTES = 75
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@with_signed_link(feed_of, lambda feed: feed.organization.language)
@require_safe
def schedule_feed(request: HttpRequest, feed: ScheduleFeed) -> HttpResponse:
    """Return the feed. Too many requests are a 429 with Retry-After."""
    taken = throttling.take_token(f"schedule-feed:{feed.pk}", RATE)
    if taken.wait_ms:
        wait_s = -(-taken.wait_ms // 1000)
        return HttpResponse("Too many requests.\n", "text/plain", 429, headers={"Retry-After": str(wait_s)})
    return HttpResponse(calendar_of(feed.organization), "text/calendar; charset=utf-8")


def calendar_of(organization: Organization) -> str:
    """Return the calendar of the next 31 days."""
    now = clock.now()
    coming = coming_of_organization(organization, now + timedelta(days=DAYS))
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//Dispatch//Schedules//EN",
        "METHOD:PUBLISH",
        f"X-WR-CALNAME:{escape(f'{organization.name}: schedules')}",
    ]
    if not coming.is_whole:
        lines.append(f"X-WR-CALDESC:{escape(f'The next {len(coming.occurrences):,} runs. There are more.')}")
    for at, schedule in coming.occurrences:
        lines += _event(at, schedule, now)
    return "".join(f"{line}\r\n" for whole in [*lines, "END:VCALENDAR"] for line in fold(whole))


def _event(at: datetime, schedule: Schedule, now: datetime) -> list[str]:
    kind = kinds.get_kind(schedule.kind).label if kinds.is_known(schedule.kind) else schedule.kind
    words = f"{kind}. {descriptions.describe(schedule.timing)}"
    return [
        "BEGIN:VEVENT",
        f"UID:schedule-{schedule.pk}-{_moment(at)}@dispatch",
        f"DTSTAMP:{_moment(now)}",
        f"DTSTART:{_moment(schedule.due_at(at))}",
        f"SUMMARY:{escape(schedule.name)}",
        f"DESCRIPTION:{escape(words)}",
        "TRANSP:TRANSPARENT",
        "END:VEVENT",
    ]


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def escape(text: str) -> str:
    """Escape a text value. Control characters are not allowed in the format."""
    text = re.sub(r"([\\;,])", r"\\\1", text.replace("\r\n", "\n"))
    return _CONTROL.sub("", text).replace("\n", "\\n")


def fold(line: str) -> Iterator[str]:
    """Split a line into lines of at most LINE_BYTES, each but the first beginning with a space."""
    part, size = "", 0
    for character in line:
        width = len(character.encode())
        if size + width > LINE_BYTES:
            yield part
            part, size = " ", 1
        part, size = part + character, size + width
    yield part
