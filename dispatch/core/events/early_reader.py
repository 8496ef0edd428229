"""Handle urgent events before the durable reader gets them in order (`readers`)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog
from django.db import transaction

from dispatch.core.db import lock_waits, prepared
from dispatch.core.db.errors import is_database_away
from dispatch.core.db.lock_waits import LOOP_S, RecentlyBlocked, limit_lock_waits
from dispatch.core.events.readers import EventReader, index_order
from dispatch.core.models import Event, EventCursor

log = structlog.get_logger(__name__)

# The reader's cursor (c), and the one that is furthest behind (l), that of an organization if it has its own.
_CURSORS = """
core_eventcursor c
CROSS JOIN LATERAL (
    SELECT xid, event_id FROM core_eventcursor o WHERE o.name = c.name OR starts_with(o.name, c.name || ':')
    ORDER BY xid, event_id LIMIT 1
) l
"""
_EVENTS = """
WHERE (e.xid, e.id) > (l.xid, l.event_id) AND e.kind = ANY(%(kinds)s) AND e.id <> ALL(%(taken)s)
  AND ((e.xid, e.id) > (c.xid, c.event_id) OR EXISTS (
      SELECT FROM core_eventcursor o
      WHERE o.name = c.name || ':' || e.organization_id AND (e.xid, e.id) > (o.xid, o.event_id)
  ))
{order}
"""
PEEK = f"""
SELECT c.xid, c.event_id,
       (SELECT string_agg(o.name, ' ') FROM core_eventcursor o WHERE starts_with(o.name, c.name || ':')),
       (SELECT max(id) FROM core_event), early.id IS NOT NULL
FROM {_CURSORS}
LEFT JOIN LATERAL (SELECT e.id FROM core_event e {_EVENTS} LIMIT 1) early ON true
WHERE c.name = %(name)s
"""
_NEXT = f"""
SELECT early.* FROM {_CURSORS}
CROSS JOIN LATERAL (SELECT e.* FROM core_event e {_EVENTS} LIMIT %(limit)s) early
WHERE c.name = %(name)s
"""
# By whether all events beyond the cursor are checked, or those with the latest ids. Each order is that of an index
# that begins there: by id, the check of all would begin with the oldest event.
ORDER = {True: "ORDER BY e.xid, e.id", False: "AND e.id > %(floor)s ORDER BY e.id"}
# An early reader looks this far back at each step, because an event may commit after one with a higher id. It
# checks all events that its durable reader has not applied once per this period (seconds).
LOOK_BACK_S = 60.0
# An early reader retries an event that failed after this many seconds.
RETRY_AFTER_S = 10.0


class EarlyReader:
    """Pass committed events to `handle` one by one, by id, before `reader` gets them again, in order.

    `handle` must therefore be idempotent, and correct in any order. It runs under the lock of the durable reader's
    cursor, so two processes never handle events at the same time. An event that fails, or waits for a row that
    another session has locked, is logged and retried after RETRY_AFTER_S; the others are not affected. Which
    events have been handled is known in this process only. It is reset when the log ends before an id that it had:
    the database was restored to an earlier state, or a standby without the last events was promoted, and other
    events get these ids.
    """

    def __init__(self, reader: EventReader, handle: Callable[[Event], None]) -> None:
        assert reader.kinds is not None
        self.reader, self.handle = reader, handle
        self._failed = RecentlyBlocked(RETRY_AFTER_S)  # ids of events that failed a moment ago
        self.reset()

    def reset(self) -> None:
        """Reset the cache, so that the next step checks all events again."""
        self._taken: dict[int, tuple[int, int]] = {}  # handled events: id → transaction, organization
        self._failed.clear()
        self._marks: deque[tuple[float, int]] = deque()  # times with the highest id at that time
        self._scanned_at: float | None = None  # when everything beyond the cursor was last checked

    def step(self) -> int:
        """Handle newly committed events and return how many. Raises if the database is unavailable."""
        now = time.monotonic()
        is_full_scan = self._scanned_at is None or now - self._scanned_at >= LOOK_BACK_S
        floor = 0 if is_full_scan else self._floor(now)
        order = ORDER[floor == 0]
        position, apart, newest, is_event_ready = self._peek(floor, order)
        if self._marks and newest < self._marks[-1][1]:
            log.warning(
                "event_log_went_back", reader=self.reader.name, seen_id=self._marks[-1][1], newest_id=newest
            )
            self.reset()
            return self.step()
        self._taken = {
            pk: (xid, organization_id)
            for pk, (xid, organization_id) in self._taken.items()
            if (xid, pk) > position or organization_id in apart
        }
        handled: list[Event] = []
        events_read: list[Event] = []
        if is_event_ready:
            with limit_lock_waits(LOOP_S), transaction.atomic():
                EventCursor.objects.select_for_update(no_key=True).get_or_create(name=self.reader.name)
                lock_waits.apply_limit()
                with index_order():
                    events_read = self._beyond(floor, order)
                handled = [event for event in events_read if self._handle(event)]
        self._taken |= {event.pk: (event.xid, event.organization_id) for event in handled}  # committed
        if is_full_scan and len(events_read) < self.reader.batch:
            self._scanned_at = now
        self._marks.append((now, max([newest, *(event.pk for event in handled)])))
        return len(handled)

    def _peek(self, floor: int, order: str) -> tuple[tuple[int, int], set[int], int, bool]:
        """Return the cursor, the organizations with another one, the newest id, and whether there is an event."""
        given = self._parameters(floor)
        statement = PEEK.format(order=order)
        rows = prepared.fetch_by_index(statement, given)
        if not rows:
            EventCursor.objects.get_or_create(name=self.reader.name)
            rows = prepared.fetch_by_index(statement, given)
        xid, event_id, own, newest, is_event_ready = rows[0]
        apart = {int(name.rpartition(":")[2]) for name in (own or "").split()}
        return (xid, event_id), apart, newest or 0, is_event_ready

    def _handle(self, event: Event) -> bool:
        """Handle one event in a savepoint. Return False if it failed; raise if the whole transaction did."""
        try:
            with transaction.atomic():
                self.handle(event)
        except Exception as error:
            if is_database_away(error) or transaction.get_rollback():
                raise
            log.exception("event_not_handled_early", reader=self.reader.name, event_id=event.pk, kind=event.kind)
            self._failed.add(event.pk)
            return False
        return True

    def _floor(self, now: float) -> int:
        """Return an id that was assigned at least LOOK_BACK_S ago."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - LOOK_BACK_S:
            self._marks.popleft()
        return self._marks[0][1] if self._marks and self._marks[0][0] <= now - LOOK_BACK_S else 0

    def _beyond(self, floor: int, order: str) -> list[Event]:
        given = {**self._parameters(floor), "limit": self.reader.batch}
        return list(Event.objects.raw(_NEXT.format(order=order), given))

    def _parameters(self, floor: int) -> dict[str, Any]:
        return {
            "name": self.reader.name, "floor": floor, "kinds": list(self.reader.kinds or ()),
            "taken": [pk for pk in (*self._taken, *self._failed.keys()) if pk > floor],
        }  # fmt: skip
