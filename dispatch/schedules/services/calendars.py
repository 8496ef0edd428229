"""Create, change, refresh and delete exclusion calendars.

A calendar's entries come from an iCalendar file, given as text or by a URL. A task reads the URL once a day; a
failure keeps the last good copy. A new version is applied to the next runs of the schedules that name the
calendar, and the executor checks each due run against the current version besides.

`refresh_at` divides the messages of a calendar into those that are waiting and those that are void. A message
names the `refresh_at` that was set when it was sent, and is void once the row has another one. A refresh that
begins sets its own. So requests while a message waits cause no further refresh, and one during a refresh causes
exactly one.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.db.isolation import run_each
from dispatch.core.events import Actor
from dispatch.core.http import client
from dispatch.core.http.ssrf import ForbiddenTarget
from dispatch.core.languages import gettext as _
from dispatch.core.runtime import queues
from dispatch.schedules import ical
from dispatch.schedules.models import ExclusionCalendar, Schedule
from dispatch.schedules.services.time_zones import move_next_run

log = structlog.get_logger(__name__)

REFRESH = "dispatch.schedules.tasks.refresh_calendar"
REFRESH_EVERY = timedelta(days=1)
# After a failure, the next try follows sooner.
RETRY_AFTER = timedelta(hours=1)
# A refresh that was enqueued and has not ended is enqueued again after this time.
STALLED_AFTER = timedelta(minutes=10)
# Likewise a refresh that has begun. It is longer by more than a refresh takes, which tells the two apart.
BEGUN_STALLED_AFTER = STALLED_AFTER + timedelta(minutes=5)
FETCH_TIMEOUT_S = 20.0
# Calendars enqueued, and schedules read, in one step.
BATCH, SCHEDULES = 50, 500
MAX_CALENDARS = 200
Entries = list[list[str]] | None
MAX_ERROR_LENGTH = 300


class NameTaken(Conflict):
    """Conflict (409): the organization has another calendar of this name."""

    default_code = "name_taken"


def create_calendar(
    organization_id: int, name: str, *, url: str = "", content: str = "", entries: Entries = None, actor: Actor
) -> ExclusionCalendar:
    """Create a calendar from a URL, which a task reads soon, or from the text of a file.

    `entries`: those of the text, if it was already read.
    Raises UnreadableCalendar, NameTaken, and Conflict if the organization has too many.
    """
    now = clock.now()
    if entries is None:
        entries = ical.read_entries(content, now) if content else []
    if ExclusionCalendar.objects.of(organization_id).count() >= MAX_CALENDARS:
        words = _("An organization has at most {most} exclusion calendars.")
        raise Conflict(words.format(most=MAX_CALENDARS), code="too_many")
    with transaction.atomic():
        calendar = _saved(
            ExclusionCalendar(
                organization_id=organization_id,
                name=name,
                url=url,
                content=content,
                entries=entries,
                refresh_at=now if url else now + REFRESH_EVERY,
                refreshed_at=now if content else None,
            )
        )
        _append_event(calendar, "created", actor, entries=len(entries))
        if url:
            _enqueue(calendar)
            calendar.save(update_fields=["refresh_at"])
    return calendar


def change_calendar(
    calendar_id: int, given: dict[str, Any], *, entries: Entries = None, actor: Actor
) -> ExclusionCalendar:
    """Change the name, the URL or the content. A URL replaces the content at its next refresh, and reverse.

    `entries`: those of the content, if it was already read.
    Raises UnreadableCalendar and NameTaken.
    """
    now = clock.now()
    content = given.get("content", "")
    if entries is None and content:
        entries = ical.read_entries(content, now)
    with transaction.atomic():
        calendar = ExclusionCalendar.objects.select_for_update(no_key=True).get(pk=calendar_id)
        before = {name: getattr(calendar, name) for name in ("content", "name", "url")}
        calendar.name = given.get("name", calendar.name)
        if entries is not None:
            calendar.url, calendar.content, calendar.last_error = "", content, ""
            calendar.refreshed_at = now
            _replace_entries(calendar, entries)
            _enqueue(calendar)
        elif given.get("url") and given["url"] != calendar.url:
            calendar.url = given["url"]
            _enqueue(calendar)
        _saved(calendar)
        if changed := [name for name, value in before.items() if value != getattr(calendar, name)]:
            _append_event(calendar, "changed", actor, fields=changed)
    return calendar


def delete_calendar(calendar_id: int, *, actor: Actor) -> None:
    """Delete a calendar. Raises Conflict while schedules name it."""
    with transaction.atomic():
        calendar = ExclusionCalendar.objects.select_for_update().get(pk=calendar_id)
        names = list(_schedules_with(calendar).values_list("name", flat=True)[:3])
        if names:
            words = _("Schedules exclude this calendar: {names}. Remove it from them first.")
            raise Conflict(words.format(names=", ".join(names)), code="in_use")
        _append_event(calendar, "deleted", actor)
        calendar.delete()


def request_refresh(calendar_id: int, *, actor: Actor) -> ExclusionCalendar:
    """Read the calendar's URL soon, instead of at its next time."""
    with transaction.atomic():
        calendar = ExclusionCalendar.objects.select_for_update(no_key=True).get(pk=calendar_id)
        _enqueue(calendar)
        calendar.save(update_fields=["refresh_at"])
        _append_event(calendar, "refresh_requested", actor)
    return calendar


def enqueue_due() -> float | None:
    """Enqueue the refreshes that are due, and those whose result was not applied; return 0 while more are left."""
    now = clock.now()
    with transaction.atomic():
        due = ExclusionCalendar.objects.filter(refresh_at__lte=now).order_by("refresh_at")
        calendars = list(due.select_for_update(skip_locked=True, no_key=True).defer("content", "entries")[:BATCH])
        for calendar in calendars:
            _enqueue(calendar)
            calendar.save(update_fields=["refresh_at"])
    return 0.0 if len(calendars) == BATCH else None


def refresh_calendar(calendar_id: int, refresh_at: str = "") -> None:
    """Read the calendar again, from its URL or its text, and apply it to schedules. The RQ task.

    Recurring events are expanded for a window of time, so a text is read again, too. `refresh_at` is that of the
    message, which is void if the calendar has another one.
    """
    calendar = _begin_refresh(calendar_id, refresh_at)
    if calendar is None:
        return
    now, entries, error, content = clock.now(), None, "", calendar.content
    try:
        if calendar.url:
            content = asyncio.run(_fetch(calendar.url, calendar.organization_id))
        entries = ical.read_entries(content, now)
    except (ical.UnreadableCalendar, client.TargetError, ForbiddenTarget, ValueError) as failure:
        error = str(failure)
        log.warning("calendar_not_refreshed", calendar=calendar.pk, error=error)
    with transaction.atomic():
        locked = ExclusionCalendar.objects.select_for_update(no_key=True).filter(pk=calendar.pk).first()
        if locked is None or (locked.url, locked.content) != (calendar.url, calendar.content):
            return  # it was deleted meanwhile, or changed, and will be read again
        if error and not locked.last_error:
            _append_event(locked, "refresh_failed", None, error=error[:MAX_ERROR_LENGTH])
        locked.last_error = error[:MAX_ERROR_LENGTH]
        if entries is not None:
            locked.content, locked.refreshed_at = content, now
            if entries != locked.entries:
                _replace_entries(locked, entries)
        locked.save()
    apply_calendar(calendar_id)
    refreshes = ExclusionCalendar.objects.filter(pk=calendar_id, refresh_at=calendar.refresh_at)
    refreshes.update(refresh_at=clock.now() + (RETRY_AFTER if error else REFRESH_EVERY))


def _begin_refresh(calendar_id: int, refresh_at: str) -> ExclusionCalendar | None:
    """Return the calendar with a new `refresh_at`, or None if it was deleted or this message is void."""
    with transaction.atomic():
        calendar = ExclusionCalendar.objects.select_for_update(no_key=True).filter(pk=calendar_id).first()
        if calendar is None or (refresh_at and calendar.refresh_at.isoformat() != refresh_at):
            return None
        calendar.refresh_at = clock.now() + BEGUN_STALLED_AFTER
        calendar.save(update_fields=["refresh_at"])
    return calendar


def apply_calendar(calendar_id: int) -> int:
    """Compute the next runs of the calendar's schedules again, if its entries changed; return how many moved.

    If the process dies in between, the loop repeats the refresh.
    """
    calendar = ExclusionCalendar.objects.defer("content", "entries").filter(pk=calendar_id).first()
    if calendar is None or calendar.applied_version == calendar.version:
        return 0
    moved, after = 0, 0
    while True:
        ids = list(_schedules_with(calendar).filter(pk__gt=after).values_list("pk", flat=True)[:SCHEDULES])
        moved += run_each(
            lambda pk: move_next_run(pk, "An exclusion calendar changed.", only_from_now=True),
            ids,
            event="next_run_not_moved",
        )
        if len(ids) < SCHEDULES:
            break
        after = ids[-1]
    done = ExclusionCalendar.objects.filter(pk=calendar_id, version=calendar.version)
    done.update(applied_version=calendar.version)
    return moved


def _schedules_with(calendar: ExclusionCalendar) -> Any:
    schedules = Schedule.objects.of(calendar.organization_id).filter(exclude_calendars__isnull=False)
    open_ones = schedules.exclude(status=Schedule.Status.DELETED)
    return open_ones.filter(exclude_calendars__contains=[calendar.pk]).order_by("pk")


async def _fetch(url: str, organization_id: int) -> str:
    async with client.HttpClient() as http:
        answer = await http.get(
            url, {"Accept": "text/calendar"}, FETCH_TIMEOUT_S, organization=organization_id,
            kept_bytes=ical.MAX_BYTES,
        )  # fmt: skip
    if answer.status != 200:
        raise ical.UnreadableCalendar(f"The server answered HTTP {answer.status}.")
    if answer.truncated:
        raise ical.UnreadableCalendar(f"The calendar is larger than {ical.MAX_BYTES // 1024} KB.")
    return answer.body_start.decode("utf-8", "replace").replace("\x00", "")


def _enqueue(calendar: ExclusionCalendar) -> None:
    """Enqueue a refresh after the commit, and set when the loop enqueues it again if it is lost.

    If a message is waiting, this one is a copy of it: the first of them to be worked on makes the other void.
    """
    now = clock.now()
    if not now < calendar.refresh_at <= now + STALLED_AFTER:
        calendar.refresh_at = now + STALLED_AFTER
    queues.enqueue(
        settings.SCHEDULE_IMPORT_QUEUE, REFRESH, calendar.pk, calendar.refresh_at.isoformat(),
        organization_id=calendar.organization_id,
    )  # fmt: skip


def _replace_entries(calendar: ExclusionCalendar, entries: list[list[str]]) -> None:
    calendar.entries = entries
    calendar.version += 1


def _saved(calendar: ExclusionCalendar) -> ExclusionCalendar:
    try:
        with transaction.atomic():
            calendar.save()
    except IntegrityError:
        raise NameTaken(f"There is already a calendar named “{calendar.name}”.") from None
    return calendar


def _append_event(calendar: ExclusionCalendar, verb: str, actor: Actor | None, **data: Any) -> None:
    more = {"actor": actor} if actor else {}
    events.append(
        calendar.organization_id, f"exclusioncalendar.{verb}", calendar.pk, name=calendar.name, **data, **more
    )
