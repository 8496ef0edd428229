"""Give an organization whose events cost too much its own cursor, so that it delays only itself.

A reader handles the events of all organizations in order. If those of one organization would take several
transactions, because they have very many recipients, the reader leaves them out from there on, and reads them from
a second cursor: in each step one batch, of one such organization. When both cursors have reached the end of the
log, the second one is deleted. The order within each organization stays.

An organization of which very many events have failed gets such a cursor as well, which does not move meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from dispatch.core.models import EventCursor


def own_cursors(reader: str) -> dict[int, EventCursor]:
    """Return the cursors of this reader by organization, the one that moved longest ago first."""
    rows = EventCursor.objects.filter(name__startswith=f"{reader}:").order_by("moved_at", "name")
    return {int(row.name.rpartition(":")[2]): row for row in rows}


def begin(reader: str, organization_id: int, cursor: EventCursor) -> None:
    """Let the reader leave out the organization's events after its cursor. The cursor must be locked."""
    EventCursor.objects.create(
        name=_name(reader, organization_id), xid=cursor.xid, event_id=cursor.event_id, moved_at=cursor.moved_at
    )


def lowest_cursor(readers: Iterable[str]) -> EventCursor | None:
    """Return the cursor that is furthest behind, or None if one of the readers has not read anything yet."""
    names = list(readers)
    wanted = Q(name__in=names)
    for name in names:
        wanted |= Q(name__startswith=f"{name}:")
    rows = list(EventCursor.objects.filter(wanted).order_by("xid", "event_id"))
    return rows[0] if rows and {row.name for row in rows}.issuperset(names) else None


def position(reader: str, organization_id: int | None = None) -> EventCursor:
    """Return the cursor up to which the reader has handled the organization's events, or those of all others."""
    names = [reader] if organization_id is None else [_name(reader, organization_id), reader]
    rows = {row.name: row for row in EventCursor.objects.filter(name__in=names)}
    return next((rows[name] for name in names if name in rows), EventCursor(name=reader))


def _name(reader: str, organization_id: int) -> str:
    return f"{reader}:{organization_id}"
