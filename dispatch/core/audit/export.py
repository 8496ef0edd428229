"""Export the audit log as JSON Lines: one event a line, with its place in the hash chain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from dispatch.core.audit import chain
from dispatch.core.models import AuditSeal, Event

BATCH = 1000


def export_events(
    organization_id: int, since: datetime | None = None, until: datetime | None = None, limit: int | None = None
) -> Iterator[str]:
    """Yield the organization's audit events from `since` to before `until`, by id, as lines of JSON.

    `chain` holds position, salt, digest and previous hash; it is null for an event that is not sealed yet.
    `limit` is the maximum number of lines.
    """
    rows = Event.objects.filter(organization_id=organization_id, subject_type__in=chain.SUBJECTS).order_by("id")
    if since is not None:
        rows = rows.filter(at__gte=since)
    if until is not None:
        rows = rows.filter(at__lt=until)
    after, left = 0, limit
    while page := list(rows.filter(id__gt=after)[: BATCH if left is None else min(BATCH, left)]):
        seals = {seal.event_id: seal for seal in AuditSeal.objects.filter(event_id__in=[row.pk for row in page])}
        for event in page:
            seal = seals.get(event.pk)
            yield json.dumps({**chain.event_contents(event), "chain": _place(seal)}) + "\n"
        after = page[-1].pk
        if left is not None:
            left -= len(page)


def _place(seal: AuditSeal | None) -> dict[str, Any] | None:
    if seal is None:
        return None
    return {"position": seal.position, "salt": seal.salt, "digest": seal.digest, "previous": seal.previous}
