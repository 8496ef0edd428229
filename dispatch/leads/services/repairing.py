"""What the reconcilers do: the schedule is set right by the rows, and claims that nobody ended are ended."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import structlog
from django.conf import settings

from dispatch.core import clock, generation
from dispatch.leads import figures, measures, schedule, sql
from dispatch.leads.rules import spreading
from dispatch.leads.schedule import Entry
from dispatch.leads.services import ending
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

PAGE = 5000
# Of what is compared with the schedule, in one script.
COMPARED = 1000
# Small ones, for the dialers of the same process wait while one is compared: as large as brings the whole backlog
# within half an hour, in these bounds.
SWEEP_PAGE, SWEEP_LEAST = 1000, 100
SWEEP_OVER_S = 1800.0
STALE_BATCH = 500
BEGINNING = datetime.min.replace(tzinfo=UTC)
EPOCH = datetime.fromtimestamp(0, UTC)
Position = tuple[datetime, int]
START: Position = (BEGINNING, 0)

_chance = random.Random()


def page_of_due(after: Position, until: datetime, limit: int = PAGE) -> tuple[list[Entry], Position]:
    """What the schedule should hold from a position on, in the order in which it is due; and the next position."""
    found = sql.rows(sql.DUE, {"after": after[0], "after_id": after[1], "until": until, "limit": limit})
    if not found:
        return [], after
    last = found[-1]
    return [Entry(*row[:4]) for row in found], (EPOCH + timedelta(microseconds=last[4]), last[1])


def schedule_near() -> int:
    """Schedules backlog rows that are due within the near time and are nowhere in Redis; how many those were."""
    until = clock.now() + timedelta(seconds=settings.LEADS_NEAR_S)
    position, added = START, 0
    while True:
        page = page_to_compare(position, until, COMPARED)
        added += schedule_missing(page)
        if page.leads < COMPARED:
            return added
        position = page.last


class Page(NamedTuple):
    """What the schedule should hold, as text (`sql.PAGE_OF_DUE`): so many leads, up to a position."""

    text: str
    leads: int
    last: Position


def page_to_compare(after: Position, until: datetime, limit: int) -> Page:
    """The next page from a position on, in the order in which it is due."""
    given = {"after": after[0], "after_id": after[1], "until": until, "limit": limit}
    ((text, count, due_us, lead_id),) = sql.rows(sql.PAGE_OF_DUE, given)
    return Page(text, count, (EPOCH + timedelta(microseconds=due_us), lead_id)) if count else Page("", 0, after)


def schedule_missing(page: Page) -> int:
    """Schedules those of a page that are nowhere in Redis; how many those were."""
    if not page.leads:
        return 0
    try:
        added = schedule.tell_missing(page.text)
    except schedule.Gone:
        return 0
    if added:
        measures.repairs.labels("missing").inc(added)
        log.info("leads were missing in the schedule", added=added)
    return added


def sweep_page(scheduled: int) -> int:
    """How many rows a step of the sweep takes, while so many leads are scheduled."""
    wanted = math.ceil(scheduled * settings.LEADS_SWEEP_INTERVAL_S / SWEEP_OVER_S)
    return min(max(wanted, SWEEP_LEAST), PAGE)


class Sweep:
    """Goes over the whole backlog, a page a step, and schedules what is missing: slowly, all of it within an hour;
    at once while nobody has been through since Redis lost its data."""

    def __init__(self) -> None:
        self._position = START
        self._generation: str | None = None

    def step(self) -> bool:
        """One page; whether there is more to do at once. Raises REDIS_ERRORS."""
        current = generation.current()
        if current is None:
            return False
        if current != self._generation:
            self._generation, self._position = current, START
        at_once = schedule.swept_in() != current
        left = SWEEP_PAGE if at_once else sweep_page(figures.schedule_size())
        while left > 0:
            most = min(left, COMPARED)
            page = page_to_compare(self._position, datetime.max.replace(tzinfo=UTC), most)
            schedule_missing(page)
            if page.leads < most:
                break
            self._position = page.last
            left -= most
        else:
            return at_once
        self._position = START
        schedule.set_swept(current)
        return False


def rebuild() -> None:
    """Writes the schedule anew from the rows, when Redis has lost it: what is overdue, spread over a window that
    grows with it, and what is due within the near time. The sweep brings the rest."""
    schedule.forget_all()
    now = clock.now()
    overdue = sql.rows(sql.OVERDUE, {"now": now})[0][0]
    window = spreading.window_s(
        overdue, settings.LEADS_JITTER_S, settings.LEADS_JITTER_PER, settings.LEADS_JITTER_MOST_S
    )
    position, seen = START, 0
    first_ms = last_ms = None
    until = now + timedelta(seconds=settings.LEADS_NEAR_S)
    while seen < settings.LEADS_REBUILD_MOST:
        entries, position = page_of_due(position, until)
        now_ms = schedule.ms(now)
        spread = []
        for entry in entries:
            if entry.due_ms <= now_ms:
                late_s = spreading.place_in(window, seen, overdue, _chance.random())
                entry = entry._replace(due_ms=now_ms + int(late_s * 1000))
                first_ms, last_ms = first_ms or entry.due_ms, entry.due_ms
            seen += 1
            spread.append(entry)
        schedule.write_anew(spread)
        if len(entries) < PAGE:
            break
    measures.backlog_at_rebuild.set(overdue)
    measures.rebuild_window.set(window)
    measures.rebuild_spread.set(((last_ms or 0) - (first_ms or 0)) / 1000)
    log.info("the schedule is rebuilt", overdue=overdue, near=seen, window_s=round(window, 1))


def bury_workers() -> int:
    """Makes ready again what dead dialers held."""
    dead, back = schedule.bury(settings.LEADS_WORKER_DEAD_S)
    if dead:
        measures.repairs.labels("dead_worker").inc(dead)
        measures.repairs.labels("held").inc(back)
        log.warning("dialers died", dialers=dead, leads=back)
    return back


def end_stale_claims(limit: int = STALE_BATCH) -> int:
    """Ends claims whose call is over without a word to the lead, or that have none; how many.

    A call's end and its lead's are two transactions. Between them the process may die or the database go away, for
    longer than the provider repeats its webhook."""
    now = clock.now()
    found = sql.rows(
        sql.STALE,
        {
            "ended_before": now - timedelta(seconds=settings.LEADS_UNTOLD_S),
            "claimed_before": now - timedelta(seconds=settings.LEADS_STALE_S),
            "limit": limit,
        },
    )
    for lead_id, token, call_id in found:
        if call_id is None:
            ending.without_call(lead_id, token)
        else:
            ending.call_changed(Call.objects.get(pk=call_id))
    if found:
        measures.repairs.labels("stale_claim").inc(len(found))
        log.warning("claims were stale", leads=len(found))
    return len(found)
