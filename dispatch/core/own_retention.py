"""What core itself ages: the event log, and answers to idempotent requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection

from dispatch.core import retention
from dispatch.core.models import EventCursor, RememberedAnswer
from dispatch.core.readers import readers

EVENT_DAYS = 400

# What every reader has read lies below the least of their cursors, in the order (xid, id).
_FORGET = """
DELETE FROM core_event WHERE id IN (
    SELECT e.id FROM core_event e
    WHERE e.organization_id = %(organization)s AND e.at < %(before)s AND (e.xid, e.id) <= (%(xid)s, %(id)s)
    {keep}
    ORDER BY e.id LIMIT %(limit)s
)
"""
# SQL conditions on an event `e` that is to be kept, whatever its age.
_needed: list[str] = []


def keep_events(condition: str) -> None:
    """Events for which the SQL `condition` on `e` holds are kept: those of a subject that is still open. Called
    from AppConfig.ready()."""
    _needed.append(condition)


def forget_events(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes events that every reader has read and nothing open needs."""
    cursors = EventCursor.objects.filter(name__in=list(readers)).order_by("xid", "event_id")
    first = cursors.first()
    if first is None or cursors.count() < len(readers):
        return 0  # a reader that has not begun has everything before it
    given: dict[str, Any] = {
        "organization": organization_id, "before": before, "limit": limit, "xid": first.xid, "id": first.event_id,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_FORGET.format(keep="".join(f"AND NOT ({one}) " for one in _needed)), given)
        return int(cursor.rowcount)


def forget_answers(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes remembered answers."""
    old = RememberedAnswer.objects.filter(organization_id=organization_id, created_at__lt=before)
    ids = list(old.order_by("created_at").values_list("pk", flat=True)[:limit])
    return RememberedAnswer.objects.filter(pk__in=ids).delete()[0]


def register() -> None:
    retention.register("events", EVENT_DAYS, forget_events, label="Event log")
    promised = settings.IDEMPOTENCY_KEEP_DAYS
    retention.register(
        "idempotency_keys", promised, forget_answers, label="Idempotency keys", shortest_days=promised
    )
