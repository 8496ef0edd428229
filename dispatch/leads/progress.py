"""How far a campaign has come."""

from __future__ import annotations

from typing import Any

from django.db.models import Count

from dispatch.leads.models import Campaign, Lead


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
