"""Count the progress of campaigns."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Case, Count, When

from dispatch.core import clock
from dispatch.leads import sql
from dispatch.leads.models import Campaign, Lead

# From LARGE_CAMPAIGN_ROWS leads on, counting takes long, so all viewers share a count. It is cached for
# CACHE_TTL_FACTOR times as long as it took, at most CACHE_TTL_MAX_S.
LARGE_CAMPAIGN_ROWS, CACHE_TTL_FACTOR, CACHE_TTL_MAX_S = 50_000, 10, 30.0
_cached: dict[int, tuple[datetime, float, list[LeadCounts]]] = {}


class LeadCounts(NamedTuple):
    """A group of leads with the same state, and their number (`leads`).

    `hour`: for waiting leads, how many of the given moments precede their due time. `due`: how many are due now
    and wait only for a line. `first`: when the first is due.
    """

    campaign_id: int
    status: str
    outcome: str
    reason: str
    hour: int | None
    leads: int
    due: int
    first: datetime


def count_leads(organization_id: int, hours: Sequence[datetime]) -> list[LeadCounts]:
    """Count all leads of an organization.

    With very many leads, the count may be half a minute old, or as old as a recount in progress takes.
    """
    since, until, cached = _cached.get(organization_id, (None, 0.0, []))
    is_current = since == hours[0]
    if is_current and time.monotonic() < until:
        return cached
    lock = _counting_lock(organization_id)
    if not lock.acquire(blocking=not is_current):
        return cached
    try:
        return _count(organization_id, hours)
    finally:
        lock.release()


def _count(organization_id: int, hours: Sequence[datetime]) -> list[LeadCounts]:
    since, until, counts = _cached.get(organization_id, (None, 0.0, []))
    if since == hours[0] and time.monotonic() < until:  # another thread has counted meanwhile
        return counts
    began = time.monotonic()
    params = {"organization": organization_id, "hours": list(hours), "now": clock.now()}
    counts = [LeadCounts(*row) for row in sql.fetch_all(sql.COUNTED, params)]
    took_s = time.monotonic() - began
    if sum(group.leads for group in counts) >= LARGE_CAMPAIGN_ROWS:
        kept_s = min(CACHE_TTL_FACTOR * took_s, CACHE_TTL_MAX_S)
        _cached[organization_id] = hours[0], time.monotonic() + kept_s, counts
    else:
        _cached.pop(organization_id, None)
    return counts


def reset() -> None:
    """Reset the cached counts (tests)."""
    _cached.clear()


@functools.lru_cache(maxsize=1024)
def _counting_lock(organization_id: int) -> threading.Lock:
    """Return the lock for counting this organization's leads in this process."""
    return threading.Lock()


def progress_of(campaign: Campaign) -> dict[str, Any]:
    """Return the counts of a campaign's leads.

    `total`, `statuses`, `outcomes`, and `waiting` by reason ("due": waiting for a line; "scheduled": not due yet).
    """
    is_due = Case(When(due_at__lte=clock.now(), then=True), default=False)
    leads = Lead.objects.filter(campaign=campaign).annotate(is_due=is_due)
    rows = leads.values_list("status", "outcome", "reason", "is_due").order_by()
    counts: dict[str, dict[str, int]] = {"statuses": {}, "outcomes": {}, "waiting": {}}
    total = 0
    for status, outcome, reason, due, count in rows.annotate(count=Count("pk")):
        total += count
        _add(counts["statuses"], status, count)
        _add(counts["outcomes"], outcome, count)
        if status == Lead.Status.BACKLOG:
            _add(counts["waiting"], reason or ("due" if due else "scheduled"), count)
    return {"total": total, **counts}


def _add(counts: dict[str, int], name: str, count: int) -> None:
    if name:
        counts[name] = counts.get(name, 0) + count
