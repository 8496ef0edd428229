"""Durable readers of the event log: each event once, none skipped, in (xid, id) order.

Ids are allotted before commit, so an event with a lower id may appear after one with a higher. A reader therefore
takes only events of transactions below `pg_snapshot_xmin`: all of those have ended, and no more can come."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import connection, transaction

from dispatch.core import clock, metrics
from dispatch.core.models import Event, EventCursor

log = structlog.get_logger(__name__)

_HORIZON = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NEXT = """
SELECT * FROM core_event
WHERE (xid, id) > (%(xid)s, %(id)s) AND xid < %(horizon)s AND (%(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s))
  AND subject_type <> ALL(%(without)s::text[])
ORDER BY xid, id LIMIT %(limit)s
"""
# By id, each reader stands right before the first event that it had not applied, or after all of them.
_AFTER_RESTORE = """
UPDATE core_eventcursor AS c SET xid = 0, event_id = COALESCE(
    (SELECT min(e.id) - 1 FROM core_event e WHERE (e.xid, e.id) > (c.xid, c.event_id)),
    (SELECT max(e.id) FROM core_event e),
    0)
"""
# An idle reader moves its cursor only when this many transactions have gone by, not to write each second.
IDLE_STRIDE = 1000
ANY_XID = 2**63 - 1


readers: dict[str, EventReader] = {}  # every reader that this process knows, for the gauge


class EventReader:
    """Hands the events of some kinds to `handle`, in batches, in the transaction that moves the cursor.

    `handle` writes to the same database; what it writes and the cursor commit together, or neither. If it raises,
    the same events come again. `kinds` None means all; "job.*" is not understood, name each kind. Events whose
    subject's type is in `without` are passed over."""

    def __init__(
        self,
        name: str,
        handle: Callable[[list[Event]], None],
        kinds: tuple[str, ...] | None = None,
        *,
        without: tuple[str, ...] = (),
        batch: int = 200,
    ) -> None:
        self.name, self.handle, self.kinds, self.batch = name, handle, kinds, batch
        self.without = without
        readers[name] = self

    def step(self) -> int:
        """Applies one batch; how many events it held. 0: nothing new. Raises what `handle` raises."""
        cursor, _ = EventCursor.objects.get_or_create(name=self.name)
        horizon = self._horizon()
        if horizon <= cursor.xid:
            raise CounterWentBack(self.name, cursor.xid, horizon)
        if not self._after(cursor, horizon, 1) and horizon - cursor.xid < IDLE_STRIDE:
            return 0
        with transaction.atomic():
            # Whoever holds this row reads; a second process waits here and then finds nothing left.
            cursor = EventCursor.objects.select_for_update().get(name=self.name)
            horizon = self._horizon()
            events = self._after(cursor, horizon, self.batch)
            if events:
                self.handle(events)
            if events:
                cursor.xid, cursor.event_id = events[-1].xid, events[-1].pk
            if len(events) < self.batch:  # all below the horizon was seen, also what was of other kinds
                cursor.xid = horizon - 1
            cursor.moved_at = clock.now()
            cursor.save()
        metrics.events_read.labels(self.name).inc(len(events))
        return len(events)

    def lag_s(self) -> float:
        """Age in seconds of the oldest committed event that it has not applied; 0 when there is none."""
        cursor = EventCursor.objects.filter(name=self.name).first() or EventCursor(name=self.name)
        waiting = self._after(cursor, ANY_XID, 1)
        return max(0.0, (clock.now() - waiting[0].at).total_seconds()) if waiting else 0.0

    def _horizon(self) -> int:
        with connection.cursor() as sql:
            sql.execute(_HORIZON)
            return int(sql.fetchone()[0])

    def _after(self, cursor: EventCursor, horizon: int, limit: int) -> list[Event]:
        return list(
            Event.objects.raw(
                _NEXT,
                {
                    "xid": cursor.xid,
                    "id": cursor.event_id,
                    "horizon": horizon,
                    "kinds": list(self.kinds) if self.kinds is not None else None,
                    "without": list(self.without),
                    "limit": limit,
                },
            )
        )


class CounterWentBack(RuntimeError):
    """The database's transaction counter is behind the cursor: it was restored from a dump elsewhere."""

    def __init__(self, reader: str, seen: int, horizon: int) -> None:
        super().__init__(
            f"The reader {reader} has seen transaction {seen}, but the database is only at {horizon}: "
            "was it restored from a dump? Run `manage.py after_restore`."
        )


@transaction.atomic
def after_restore() -> int:
    """Once, after a dump was restored into another cluster and before anything else runs: the transaction ids of
    that other life are taken off the events, and each reader goes on at the first event it had not applied.

    How many events were touched. From now on the old events are read in the order of their ids, which is not quite
    the order of before: around that first one, some may be applied twice."""
    with connection.cursor() as sql:
        sql.execute(_AFTER_RESTORE)
    return Event.objects.filter(xid__gt=0).update(xid=0)
