"""Serve an organization's coming runs as an iCalendar file (RFC 5545), by a signed link.

Each occurrence is an event without a duration, in UTC, so that clients need no time zone definitions. Payloads are
not in the feed.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from icalendar import Calendar, Event, vText

from accounts.auth import throttling
from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.jobs.public.common import with_signed_link
from dispatch.schedules import kinds
from dispatch.schedules.models import Schedule, ScheduleFeed
from dispatch.schedules.queries import coming_of_organization
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services.feeds import feed_of

DAYS = 31
# Requests for one feed. Calendar programs poll every few minutes at most.
RATE = throttling.parse_rate("30/min")
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
    calendar = Calendar()
    calendar.add("version", "2.0")
    calendar.add("prodid", "-//Dispatch//Schedules//EN")
    calendar.add("method", "PUBLISH")
    calendar.add("x-wr-calname", text_of(_("{organization}: schedules").format(organization=organization.name)))
    if not coming.is_whole:
        words = _("The next {count} runs. There are more.")
        calendar.add("x-wr-caldesc", text_of(words.format(count=f"{len(coming.occurrences):,}")))
    for at, schedule in coming.occurrences:
        calendar.add_component(_event(at, schedule, now))
    return bytes(calendar.to_ical()).decode()


def _event(at: datetime, schedule: Schedule, now: datetime) -> Event:
    kind = _(kinds.get_kind(schedule.kind).label) if kinds.is_known(schedule.kind) else schedule.kind
    event = Event()
    event.add("uid", f"schedule-{schedule.pk}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}@dispatch")
    event.add("dtstamp", now.astimezone(UTC))
    event.add("dtstart", schedule.due_at(at).astimezone(UTC))
    event.add("summary", text_of(schedule.name))
    event.add("description", text_of(f"{kind}. {descriptions.describe(schedule.timing)}"))
    event.add("transp", "TRANSPARENT")
    return event


def text_of(text: str) -> vText:
    """Return a text value without control characters, which the format does not allow."""
    return vText(_CONTROL.sub("", text.replace("\r\n", "\n")))
