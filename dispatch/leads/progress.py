"""How far campaigns have come."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count

from dispatch.core import clock
from dispatch.leads import sql
from dispatch.leads.models import Campaign, Lead

# So many leads take long to count: all who look share one count, for so many times as long as it took.
MANY, KEPT_TIMES, KEPT_MOST_S = 50_000, 10, 30.0
_kept: dict[int, tuple[datetime, float, list[Counted]]] = {}


class Counted(NamedTuple):
    """So many `leads` are alike. `hour`: of those that wait, how many of the moments asked about have come when
    they are due; `due`: how many are due now and wait for nothing but a line; `first`: when the first is due."""

    campaign_id: int
    status: str
    outcome: str
    reason: str
    hour: int | None
    leads: int
    due: int
    first: datetime


def counted(organization_id: int, hours: Sequence[datetime]) -> list[Counted]:
    """An organization's leads, all of them, counted. Of very many leads, the count may be half a minute old, and
    while somebody counts anew, as old as that takes longer."""
    since, until, kept = _kept.get(organization_id, (None, 0.0, []))
    of_now = since == hours[0]
    if of_now and time.monotonic() < until:
        return kept
    counting = _counting(organization_id)
    if not counting.acquire(blocking=not of_now):
        return kept
    try:
        return _count(organization_id, hours)
    finally:
        counting.release()


def _count(organization_id: int, hours: Sequence[datetime]) -> list[Counted]:
    since, until, found = _kept.get(organization_id, (None, 0.0, []))
    if since == hours[0] and time.monotonic() < until:  # whoever was waited for has counted
        return found
    began = time.monotonic()
    given = {"organization": organization_id, "hours": list(hours), "now": clock.now()}
    found = [Counted(*row) for row in sql.rows(sql.COUNTED, given)]
    took_s = time.monotonic() - began
    if sum(one.leads for one in found) >= MANY:
        kept_s = min(KEPT_TIMES * took_s, KEPT_MOST_S)
        _kept[organization_id] = hours[0], time.monotonic() + kept_s, found
    else:
        _kept.pop(organization_id, None)
    return found


def forget() -> None:
    """Counts anew next time (tests)."""
    _kept.clear()


@functools.lru_cache(maxsize=1024)
def _counting(organization_id: int) -> threading.Lock:
    """Held by whoever counts this organization's leads in this process."""
    return threading.Lock()


def progress_of(campaign: Campaign) -> dict[str, Any]:
    """The counts of a campaign's leads: `total`, `statuses`, `outcomes`, and `waiting` by reason ("due": for their
    turn)."""
    rows = Lead.objects.filter(campaign=campaign).values_list("status", "outcome", "reason").order_by()
    found: dict[str, dict[str, int]] = {"statuses": {}, "outcomes": {}, "waiting": {}}
    total = 0
    for status, outcome, reason, count in rows.annotate(count=Count("pk")):
        total += count
        _add(found["statuses"], status, count)
        _add(found["outcomes"], outcome, count)
        if status == Lead.Status.BACKLOG:
            _add(found["waiting"], reason or "due", count)
    return {"total": total, **found}


def _add(counts: dict[str, int], word: str, count: int) -> None:
    if word:
        counts[word] = counts.get(word, 0) + count
