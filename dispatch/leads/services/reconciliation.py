"""Reconcile leads: correct the schedule from the rows, and end stale claims."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.core.db.isolation import FailureRule, run_each
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.db.prepared import prefer_index_plans
from dispatch.core.redis import generation
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.leads import counters, queue_stats, redis_queue, sql
from dispatch.leads.redis_queue import RebuildSpread, ScheduleEntry
from dispatch.leads.rules import retries
from dispatch.leads.services import completion
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

PAGE = 5000
# Maximum number of entries that a script compares with the schedule.
COMPARED = 1000
# Page size of the sweep. Pages are small, because the dialers of the process wait while a page is compared, but
# large enough to compare the whole backlog within half an hour, within these bounds.
SWEEP_PAGE, MIN_SWEEP = 1000, 100
SWEEP_OVER_S = 1800.0
STALE_BATCH = 500
# From this number of overdue leads on, they are counted before they are compared with the schedule.
MANY_OVERDUE = 5000
# Leads whose stale claim could not be ended. They are skipped for this number of seconds.
_failed_claims = RecentlyBlocked(60.0)
BEGINNING = datetime.min.replace(tzinfo=UTC)
EPOCH = datetime.fromtimestamp(0, UTC)
Position = tuple[datetime, int]
START: Position = (BEGINNING, 0)

_chance = random.Random()


def page_of_due(after: Position, until: datetime, limit: int) -> tuple[list[ScheduleEntry], Position]:
    """Return the entries that the schedule should contain after a position, by due time, and the next position."""
    rows = sql.fetch_all(sql.DUE, {"after": after[0], "after_id": after[1], "until": until, "limit": limit})
    if not rows:
        return [], after
    last = rows[-1]
    return [ScheduleEntry(*row[:4]) for row in rows], (EPOCH + timedelta(microseconds=last[4]), last[1])


def schedule_near() -> int:
    """Schedule waiting leads that are due soon and missing from Redis. Return how many.

    If very many leads are overdue, because they wait for lines, they are only compared if Redis has fewer of them.
    """
    now = clock.now()
    until = now + timedelta(seconds=settings.LEADS_NEAR_S)
    try:
        is_swept = redis_queue.swept_generation() == generation.current_generation()
        spread = None if is_swept else redis_queue.rebuild_spread()
        position = (now, 0) if _has_all_overdue(now) else START
    except REDIS_ERRORS:
        return 0
    added = compared = 0
    while True:
        page = page_to_compare(position, until, COMPARED, compared=compared, spread=spread)
        added += schedule_missing(page)
        if page.leads < COMPARED:
            return added
        position = page.last
        compared += page.leads


def _has_all_overdue(now: datetime) -> bool:
    """Return whether very many leads are overdue, and Redis has at least as many due leads.

    Raises any of REDIS_ERRORS.
    """
    with transaction.atomic():
        prefer_index_plans()
        ((overdue,),) = sql.fetch_all(sql.OVERDUE, {"now": now})
    return overdue > MANY_OVERDUE and queue_stats.due_leads() >= overdue


class Page(NamedTuple):
    """A page of the entries that the schedule should contain, as text (`sql.PAGE_OF_DUE`)."""

    text: str
    leads: int
    last: Position


def page_to_compare(
    after: Position, until: datetime, limit: int, *, compared: int = 0, spread: RebuildSpread | None = None
) -> Page:
    """Return the next page after a position, ordered by due time.

    `spread`: the rebuild scheduled only the first of the overdue leads; the others follow them. `compared`: how
    many leads precede this page.
    """
    overdue_ms, floor_ms = (spread.began_ms, spread.position_ms(compared)) if spread else (0, 0)
    params = {
        "after": after[0], "after_id": after[1], "until": until, "limit": limit,
        "overdue_ms": overdue_ms, "floor_ms": floor_ms,
    }  # fmt: skip
    ((text, count, due_us, lead_id),) = sql.fetch_all(sql.PAGE_OF_DUE, params)
    return Page(text, count, (EPOCH + timedelta(microseconds=due_us), lead_id)) if count else Page("", 0, after)


def schedule_missing(page: Page) -> int:
    """Schedule the leads of a page that are missing from Redis. Return how many."""
    if not page.leads:
        return 0
    try:
        added = redis_queue.sync_missing(page.text)
    except redis_queue.RedisUnavailable:
        return 0
    if added:
        counters.repairs.labels("missing").inc(added)
        log.info("missing_leads_scheduled", added=added)
    return added


def sweep_page(scheduled: int) -> int:
    """Return how many rows a step of the sweep reads, depending on the number of scheduled leads."""
    wanted = math.ceil(scheduled * settings.LEADS_SWEEP_INTERVAL_S / SWEEP_OVER_S)
    return min(max(wanted, MIN_SWEEP), PAGE)


class Sweep:
    """Sweeps the whole backlog, a page per step, and schedules missing leads.

    It normally takes less than an hour for all of it. If no sweep has finished since Redis lost its data, it does
    not pause between steps.
    """

    def __init__(self) -> None:
        self._position = START
        self._compared = 0
        self._generation: str | None = None

    def step(self) -> bool:
        """Compare a page, and return whether to continue immediately. Raises any of REDIS_ERRORS."""
        current = generation.current_generation()
        if current is None:
            return False
        if current != self._generation:
            self._generation, self._position, self._compared = current, START, 0
        at_once = redis_queue.swept_generation() != current
        left = SWEEP_PAGE if at_once else sweep_page(queue_stats.schedule_size())
        spread, until = redis_queue.rebuild_spread() if at_once else None, datetime.max.replace(tzinfo=UTC)
        while left > 0:
            limit = min(left, COMPARED)
            page = page_to_compare(self._position, until, limit, compared=self._compared, spread=spread)
            schedule_missing(page)
            if page.leads < limit:
                break
            self._position = page.last
            self._compared += page.leads
            left -= limit
        else:
            return at_once
        self._position, self._compared = START, 0
        redis_queue.set_swept_generation(current)
        return False


def rebuild_schedule() -> None:
    """Rebuild the schedule from the rows after Redis has lost it.

    It contains the overdue leads, spread over a window that grows with their number, and the leads that are due
    soon. The sweep adds the others.
    """
    redis_queue.clear()
    now = clock.now()
    overdue = sql.fetch_all(sql.OVERDUE, {"now": now})[0][0]
    window = retries.jitter_window_s(
        overdue, settings.LEADS_JITTER_S, settings.LEADS_JITTER_PER, settings.LEADS_JITTER_MOST_S
    )
    position, seen = START, 0
    first_ms = last_ms = None
    until = now + timedelta(seconds=settings.LEADS_NEAR_S)
    while seen < settings.LEADS_REBUILD_MOST:
        entries, position = page_of_due(position, until, PAGE)
        now_ms = redis_queue.to_ms(now)
        spread = []
        for entry in entries:
            if entry.due_ms <= now_ms:
                late_s = retries.jitter_position(window, seen, overdue, _chance.random())
                entry = entry._replace(due_ms=now_ms + int(late_s * 1000))
                first_ms, last_ms = first_ms or entry.due_ms, entry.due_ms
            seen += 1
            spread.append(entry)
        redis_queue.rebuild_schedule(spread)
        if len(entries) < PAGE:
            break
    redis_queue.set_rebuild_spread(RebuildSpread(redis_queue.to_ms(now), int(window * 1000), overdue))
    counters.backlog_at_rebuild.set(overdue)
    counters.rebuild_window.set(window)
    counters.rebuild_spread.set(((last_ms or 0) - (first_ms or 0)) / 1000)
    log.info("schedule_rebuilt", overdue=overdue, near=seen, window_s=round(window, 1))


def reap_batches() -> int:
    """Requeue the leads of batches whose lease has ended. Return how many."""
    dead, requeued = redis_queue.reap(settings.LEADS_WORKER_DEAD_S)
    if requeued:
        counters.repairs.labels("held").inc(requeued)
        log.warning("leads_lease_expired", leads=requeued)
    if dead:
        counters.repairs.labels("dead_worker").inc(dead)
        log.warning("leads_dialers_died", dialers=dead)
    return requeued


def end_stale_claims(limit: int = STALE_BATCH) -> int:
    """End claims that have no call, or whose call has ended without an update of the lead. Return how many.

    The end of a call and of its lead are two transactions. Between them, the process may die, or the database may
    be unavailable for longer than the provider repeats its webhook. A claim that fails, or that another session
    has locked, does not prevent the others.
    """
    now = clock.now()
    claims = sql.fetch_all(
        sql.STALE,
        {
            "ended_before": now - timedelta(seconds=settings.LEADS_UNTOLD_S),
            "claimed_before": now - timedelta(seconds=settings.LEADS_STALE_S),
            "but": sql.integers(_failed_claims.keys()),
            "limit": limit,
        },
    )
    skip = FailureRule[tuple[int, int, int | None]](lambda claim: _failed_claims.add(claim[0]))
    ended = run_each(_end_stale_claim, claims, event="stale_claim_not_ended", rule=skip)
    if ended:
        counters.repairs.labels("stale_claim").inc(ended)
        log.warning("stale_claims_ended", leads=ended)
    return len(claims)


def _end_stale_claim(claim: tuple[int, int, int | None]) -> int:
    lead_id, token, call_id = claim
    if call_id is None:
        completion.finish_claim_without_call(lead_id, token)
    else:
        completion.call_changed(Call.objects.get(pk=call_id))
    return 1
