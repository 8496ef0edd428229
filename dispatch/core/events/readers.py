"""Read the event log durably: each event once, none skipped, in (xid, id) order.

Ids are assigned before commit, so an event with a lower id may appear after one with a higher id. A reader
therefore takes only events of transactions below `pg_snapshot_xmin`: all of these have ended, so no more events
can appear there. One open transaction with an id, in any database of the cluster, holds that horizon back. An
`early_reader.EarlyReader` handles events that cannot wait for the horizon.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import structlog
from django.db import connection, transaction
from django.db.models import QuerySet

from dispatch.core import clock
from dispatch.core.db import fast_rows, lock_waits, prepared
from dispatch.core.db.lock_waits import LOOP_S, limit_lock_waits
from dispatch.core.events import horizon, own_cursors, quarantine
from dispatch.core.models import Event, EventCursor, FailedEvent
from dispatch.core.observability import metrics

log = structlog.get_logger(__name__)

# Whether more events are readable than an idle reader reads again at each look. It counts no further.
_ARE_MANY = """EXISTS (
        SELECT FROM core_event e WHERE (e.xid, e.id) > (c.xid, c.event_id) AND e.xid < {horizon}
        OFFSET {most} LIMIT 1
    )"""
# Whether a reader has anything to do, in one statement: its position, the horizon, whether one of its failed
# events is due, whether an event that it wants is readable, whether only very many others are, and whether any has
# failed, or an organization has its own cursor.
_PEEK = f"""
SELECT c.xid, c.event_id, h.xid,
       EXISTS (SELECT FROM core_failedevent f WHERE f.reader = c.name AND f.next_attempt_at <= %(now)s),
       next.id IS NOT NULL,
       next.id IS NULL AND {_ARE_MANY.format(horizon="h.xid", most="%(most)s::bigint")},
       EXISTS (SELECT FROM core_failedevent f WHERE f.reader = c.name),
       EXISTS (SELECT FROM core_eventcursor o WHERE starts_with(o.name, c.name || ':'))
FROM core_eventcursor c
CROSS JOIN (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid) h
LEFT JOIN LATERAL (
    SELECT e.id FROM core_event e
    WHERE (e.xid, e.id) > (c.xid, c.event_id) AND e.xid < h.xid
      AND (%(kinds)s::text[] IS NULL OR e.kind = ANY(%(kinds)s))
      AND (e.subject_type <> ALL(%(without)s::text[]) OR e.kind = ANY(%(but)s::text[]))
      AND (%(subjects)s::text[] IS NULL OR e.subject_type = ANY(%(subjects)s))
    ORDER BY e.xid, e.id LIMIT 1
) next ON true
WHERE c.name = %(name)s
"""
# The SQL condition that a step has something to do, in which the filter's values are literals. An event that waits
# for the horizon also counts, and so do a missing cursor and one behind which the transactions began again.
_IS_DUE = """
COALESCE((
    SELECT {horizon} - c.xid NOT BETWEEN 1 AND {stride} - 1
        OR {are_many}
        OR EXISTS (SELECT FROM core_failedevent f WHERE f.reader = c.name AND f.next_attempt_at <= %(now)s)
        OR EXISTS (SELECT FROM core_event e WHERE (e.xid, e.id) > (c.xid, c.event_id){wanted})
        OR EXISTS (SELECT FROM core_eventcursor o WHERE starts_with(o.name, c.name || ':'))
    FROM core_eventcursor c WHERE c.name = {name}
), true)
"""
_XMIN = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_HORIZON = f"SELECT {_XMIN}"
_NEXT = """
(t.xid, t.id) > (%(xid)s::bigint, %(id)s::bigint) AND t.xid < {horizon}
AND (%(kinds)s::text[] IS NULL OR t.kind = ANY(%(kinds)s))
AND (t.subject_type <> ALL(%(without)s::text[]) OR t.kind = ANY(%(but)s::text[]))
AND (%(subjects)s::text[] IS NULL OR t.subject_type = ANY(%(subjects)s))
AND {organizations}
ORDER BY t.xid, t.id LIMIT %(limit)s::bigint
"""
_OF_ONE = "t.organization_id = %(organization)s::bigint"
_OF_OTHERS = """t.organization_id <> ALL(ARRAY(
    SELECT split_part(name, ':', 2)::bigint FROM core_eventcursor WHERE starts_with(name, %(name)s || ':')
))"""
# The next events of one organization, or those of all without their own cursor: below a known horizon, or below
# that of the statement's own snapshot.
_NEXT_OF_ONE = _NEXT.format(horizon="%(horizon)s::bigint", organizations=_OF_ONE)
_NEXT_OF_OTHERS = _NEXT.format(horizon="%(horizon)s::bigint", organizations=_OF_OTHERS)
_NEXT_READABLE = _NEXT.format(horizon=f"(SELECT {_XMIN})", organizations=_OF_OTHERS)
_SAVE = """
UPDATE core_eventcursor SET xid = %(xid)s, event_id = %(event_id)s, moved_at = %(now)s WHERE name = %(name)s
"""
# Positions each reader, by id, right before the first event that it has not applied, or after all events.
_AFTER_RESTORE = """
UPDATE core_eventcursor AS c SET xid = 0, event_id = COALESCE(
    (SELECT min(e.id) - 1 FROM core_event e WHERE (e.xid, e.id) > (c.xid, c.event_id)),
    (SELECT max(e.id) FROM core_event e),
    0)
"""
# An idle reader moves its cursor only after this many transactions, to avoid a write per second, or behind more
# than this number of events that it does not want: each look reads all of them, and one transaction can append
# hundreds.
IDLE_STRIDE = 1000
IDLE_EVENTS = 2000
ANY_XID = 2**63 - 1
# A reader this far behind (seconds) is shown to users, and logged every REPORT_EVERY_S.
SHOWN_LAG_S = 15.0
REPORT_EVERY_S = 30.0
# An idle reader measures how far it is behind at most this often (seconds).
MEASURE_EVERY_S = 5.0


readers: dict[str, EventReader] = {}  # every reader of this process, for the gauge


class _Peek(NamedTuple):
    """What one look at the log found. `is_retry_due` may be true for an event that waits for an earlier one."""

    xid: int
    event_id: int
    horizon: int
    is_retry_due: bool
    is_event_ready: bool
    are_many_unwanted: bool
    has_failed_events: bool
    has_own_cursors: bool


class EventReader:
    """Pass the events of some kinds to `handle`, in batches, in the transaction that moves the cursor.

    `handle` writes to the same database; its writes and the cursor commit together, or neither. An event for which
    it raises, or that waits too long for a lock, is kept and retried (`quarantine`), and the reader continues with
    the others. `key` says which events must stay in order: those with the same key wait for the one that failed.
    Without it, `handle` must be correct in any order. `kinds` None means all; wildcards such as "job.*" are not
    supported, name each kind. Events whose subject's type is in `without` are skipped, except the kinds in `but`.
    `subjects` None means all; otherwise events about other types of subjects are skipped.

    `recipients` selects rows of organizations: each event may concern all of its organization. One transaction
    handles events with at most `most` recipients together. An organization whose events in a batch alone have
    more is read separately (`own_cursors`), as is one of which very many events have failed: no more of its events
    are read until some are handled or discarded.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[list[Event]], None],
        kinds: tuple[str, ...] | None = None,
        *,
        without: tuple[str, ...] = (),
        but: tuple[str, ...] = (),
        subjects: tuple[str, ...] | None = None,
        batch: int = 200,
        key: Callable[[Event], str] | None = None,
        recipients: QuerySet | None = None,
        most: int = 0,
    ) -> None:
        self.name, self.handle, self.kinds, self.batch, self.key = name, handle, kinds, batch, key
        self.recipients, self.most = recipients, most
        self.has_more = False  # whether the last `step` has left events that it could have applied
        self.without, self.but, self.subjects = without, but, subjects
        self._reported_at: float | None = None
        self._measured_at: float | None = None
        readers[name] = self

    def step(self) -> int:
        """Apply one batch, and failed events that are due; return how many events. 0 if there is nothing new.

        Raises if the database is unavailable, or if too many events have failed.
        """
        self.has_more = False
        found = self._peek()
        if found.horizon <= found.xid:
            raise CounterWentBack(self.name, found.xid, found.horizon)
        retried = self._retry_failed() if found.is_retry_due else 0
        if found.has_own_cursors:
            retried += self._step_of_one()
        is_stride_over = found.horizon - found.xid >= IDLE_STRIDE or found.are_many_unwanted
        if not found.is_event_ready and not is_stride_over:
            self._report_lag()
            return retried
        with self._locked_cursor() as cursor:
            if found.has_failed_events:
                self._leave_out_stopped(cursor)
            limit, read, held = self._read(cursor)
            costs = self._costs(read)
            others = self._leave_out_expensive(read, costs, cursor)
            events = others[: self._count_affordable(others, costs)]
            done = quarantine.apply(self.name, events, self.handle, self.key, held) if events else 0
            passed = read if done == len(others) else events[:done]
            if passed:
                cursor.xid, cursor.event_id = passed[-1].xid, passed[-1].pk
            if len(passed) == len(read) < self.batch:  # all events below the horizon, of any kind, were seen
                cursor.xid = max(cursor.xid, limit - 1)
            _save(cursor)
        self.has_more |= done == len(events) < len(others) or len(passed) == len(read) >= self.batch
        metrics.events_read.labels(self.name).inc(done)
        if len(others) < len(read):
            done += self._step_of_one()
        return done + retried

    def _step_of_one(self) -> int:
        """Apply one batch of an organization with its own cursor, and return how many events."""
        with self._locked_cursor() as cursor:
            known = own_cursors.own_cursors(self.name)
            stopped = quarantine.stopped_organizations(self.name)
            limit = self._horizon()  # for all of them: what one has read, no other may pass over
            left = [organization_id for organization_id in known if organization_id not in stopped]
            done = 0
            while left and not done:
                organization_id = left.pop(0)
                done = self._apply_own(organization_id, known[organization_id], cursor, limit)
            self.has_more |= bool(left)
        metrics.events_read.labels(self.name).inc(done)
        return done

    def _apply_own(self, organization_id: int, own: EventCursor, cursor: EventCursor, limit: int) -> int:
        """Apply the next events of one organization, and return how many.

        When both cursors are at the end of the log, the organization is read with the others again.
        """
        read = self._after(own, limit, self.batch, organization_id=organization_id)
        events = read[: self._count_affordable(read, self._costs(read))]
        held = quarantine.find_held_keys(self.name)() if self.key else set()
        done = quarantine.apply(self.name, events, self.handle, self.key, held) if events else 0
        if done:
            own.xid, own.event_id = events[done - 1].xid, events[done - 1].pk
        if done < len(read) or len(read) >= self.batch:
            _save(own)
            self.has_more |= done == len(events)
            return done
        own.xid = limit - 1
        if self._after(cursor, limit, 1):
            _save(own)
            return done
        cursor.xid, cursor.event_id = limit - 1, max(cursor.event_id, own.event_id)
        _save(cursor)
        own.delete()
        log.info("organization_read_with_others", reader=self.name, organization=organization_id)
        return done

    def _leave_out_stopped(self, cursor: EventCursor) -> None:
        """Give each organization of which too many events have failed its own cursor."""
        stopped = quarantine.stopped_organizations(self.name)
        for organization_id in sorted(stopped - own_cursors.own_cursors(self.name).keys()):
            own_cursors.begin(self.name, organization_id, cursor)
            log.error("reader_stopped_for_organization", reader=self.name, organization=organization_id)

    def _leave_out_expensive(
        self, read: Sequence[Event], costs: Mapping[int, int], cursor: EventCursor
    ) -> list[Event]:
        """Give each organization whose events are too many its own cursor, and return those of the others."""
        totals: Counter[int] = Counter()
        for event in read:
            totals[event.organization_id] += costs.get(event.organization_id, 0)
        expensive = {pk for pk, cost in totals.items() if cost > self.most}
        for organization_id in sorted(expensive):
            own_cursors.begin(self.name, organization_id, cursor)
            log.info(
                "organization_read_separately",
                reader=self.name, organization=organization_id, recipients=totals[organization_id],
            )  # fmt: skip
        return [event for event in read if event.organization_id not in expensive]

    def _count_affordable(self, events: Sequence[Event], costs: Mapping[int, int]) -> int:
        """Return how many of the events, at least one, one transaction should handle."""
        total = 0
        for number, event in enumerate(events):
            total += costs.get(event.organization_id, 0)
            if number and total > self.most:
                return number
        return len(events)

    def _costs(self, events: Sequence[Event]) -> dict[int, int]:
        """Return how many recipients an event of each organization may have, if that matters."""
        if self.recipients is None or not events:
            return {}
        statement, values = self._count_recipients
        return dict(prepared.fetch_all(statement, [*values, list({event.organization_id for event in events})]))

    @functools.cached_property
    def _count_recipients(self) -> tuple[str, tuple[Any, ...]]:
        """Return a statement that counts the recipients of organizations, and its first values."""
        assert self.recipients is not None
        rows, values = self.recipients.order_by().values("organization_id").query.sql_with_params()
        of_some = "WHERE organization_id = ANY(%s::bigint[]) GROUP BY organization_id"
        return f"SELECT organization_id, count(*) FROM ({rows}) r {of_some}", values

    def is_due(self) -> str:
        """Return the SQL condition that `step`, or that of an EarlyReader, has something to do."""
        wanted = [
            ("e.kind = ANY({})", self.kinds),
            ("e.subject_type = ANY({})", self.subjects),
            (f"(e.subject_type <> ALL({{}}) OR e.kind = ANY({_texts(self.but)}))", self.without or None),
        ]
        return _IS_DUE.format(
            horizon=_XMIN,
            stride=IDLE_STRIDE,
            are_many=_ARE_MANY.format(horizon=_XMIN, most=IDLE_EVENTS),
            wanted="".join(f" AND {test.format(_texts(some))}" for test, some in wanted if some is not None),
            name=_literal(self.name),
        )

    def _retry_failed(self) -> int:
        if not quarantine.has_due(self.name):
            return 0
        with self._locked_cursor():
            return quarantine.retry_due(self.name, self.handle)

    def lag_s(self, organization_id: int | None = None) -> float:
        """Return the age in seconds of the oldest committed event that is not applied; 0 if there is none.

        With `organization_id`, that of its events if it is read separately.
        """
        cursor = own_cursors.position(self.name, organization_id)
        is_others = cursor.name == self.name
        waiting = self._after(cursor, ANY_XID, 1, organization_id=None if is_others else organization_id)
        return max(0.0, (clock.now() - waiting[0].at).total_seconds()) if waiting else 0.0

    def waits_for_horizon(self) -> bool:
        """Return whether an open transaction prevents reading the oldest event that is not applied."""
        waiting = self._after(own_cursors.position(self.name), ANY_XID, 1)
        return bool(waiting) and waiting[0].xid >= self._horizon()

    def _report_lag(self) -> None:
        """Log periodically how far this reader is behind, and which session blocks it."""
        now = time.monotonic()
        if self._reported_at is not None and now - self._reported_at < REPORT_EVERY_S:
            return
        if self._measured_at is not None and now - self._measured_at < MEASURE_EVERY_S:
            return
        self._measured_at = now
        lag_s = self.lag_s()
        if lag_s < SHOWN_LAG_S:
            return
        self._reported_at = now
        holder = horizon.find_holder()
        log.warning(
            "event_reader_waits",
            reader=self.name,
            lag_s=round(lag_s, 1),
            holder=holder.kind if holder else None,
            holder_name=holder.name if holder else None,
            application=holder.application if holder else None,
            database=holder.database if holder else None,
            since=holder.since.isoformat() if holder and holder.since else None,
        )

    def _peek(self) -> _Peek:
        given = {"name": self.name, "now": clock.now(), "most": IDLE_EVENTS, **self._filter()}
        rows = prepared.fetch_by_index(_PEEK, given)
        if not rows:
            EventCursor.objects.get_or_create(name=self.name)
            rows = prepared.fetch_by_index(_PEEK, given)
        return _Peek(*rows[0])

    def _filter(self) -> dict[str, list[str] | None]:
        return {
            "kinds": list(self.kinds) if self.kinds is not None else None,
            "without": list(self.without),
            "but": list(self.but),
            "subjects": list(self.subjects) if self.subjects is not None else None,
        }

    @contextmanager
    def _locked_cursor(self) -> Iterator[EventCursor]:
        """Open a transaction in which only this process reads. A second one waits, and then finds nothing left."""
        with transaction.atomic():
            # Without the limit of those waits that delay only one event.
            cursor = fast_rows.fetch_one(EventCursor, "t.name = %s", [self.name], lock=True)
            if cursor is None:
                raise EventCursor.DoesNotExist(f"The cursor of the reader {self.name} does not exist.")
            with limit_lock_waits(LOOP_S):
                lock_waits.apply_limit()
                yield cursor

    def _horizon(self) -> int:
        return int(prepared.fetch_all(_HORIZON)[0][0])

    def _read(self, cursor: EventCursor) -> tuple[int, list[Event], set[str]]:
        """Return the horizon, the next events of all without their own cursor, and the keys that are held.

        Events of a later horizon may be among them. All events below the one that is returned are.
        """
        given = self._given(cursor, self.batch)
        with prepared.pipeline(), index_order():
            find_horizon = prepared.fetch_later(_HORIZON)
            find_events = fast_rows.find_many(Event, _NEXT_READABLE, given)
            find_held = quarantine.find_held_keys(self.name) if self.key else set
        return int(find_horizon()[0][0]), find_events(), find_held()

    def _after(
        self, cursor: EventCursor, horizon: int, limit: int, *, organization_id: int | None = None
    ) -> list[Event]:
        """Return the next events: those of one organization, or those of all without their own cursor."""
        given = {**self._given(cursor, limit), "horizon": horizon, "organization": organization_id}
        statement = _NEXT_OF_OTHERS if organization_id is None else _NEXT_OF_ONE
        with transaction.atomic(savepoint=False), index_order():
            return fast_rows.fetch_many(Event, statement, given)

    def _given(self, cursor: EventCursor, limit: int) -> dict[str, Any]:
        return {
            "xid": cursor.xid, "id": cursor.event_id, "limit": limit, "name": self.name, **self._filter(),
        }  # fmt: skip


@contextmanager
def index_order() -> Iterator[None]:
    """Read events by the index that has their order. To sort them, all behind the position would be read."""
    prepared.set_local(enable_sort="off")
    yield
    prepared.set_local(enable_sort="DEFAULT")


def _save(cursor: EventCursor) -> None:
    """Write the position of a cursor that is locked, with the next statement or the commit."""
    position = {"name": cursor.name, "xid": cursor.xid, "event_id": cursor.event_id, "now": clock.now()}
    prepared.change_later(_SAVE, position)


def _literal(text: str) -> str:
    """Return a name from the code as an SQL literal in a statement with parameters."""
    assert not set(text) & set("'\\%{}"), text
    return f"'{text}'"


def _texts(values: tuple[str, ...]) -> str:
    return f"ARRAY[{', '.join(map(_literal, values))}]::text[]"


def lagging(organization_id: int | None = None) -> dict[str, float]:
    """Return the lag in seconds, by name, of each reader that is at least SHOWN_LAG_S behind.

    With `organization_id`, behind that organization's events where it is read separately.
    """
    lags = {name: reader.lag_s(organization_id) for name, reader in readers.items()}
    return {name: lag_s for name, lag_s in lags.items() if lag_s >= SHOWN_LAG_S}


class CounterWentBack(RuntimeError):
    """The database's transaction counter is behind the cursor: it was restored from another cluster's dump."""

    def __init__(self, reader: str, seen: int, horizon: int) -> None:
        super().__init__(
            f"The reader {reader} has seen transaction {seen}, but the database is only at {horizon}: "
            "was it restored from a dump? Run `manage.py after_restore`."
        )


@transaction.atomic
def after_restore() -> int:
    """Reset events and readers after a dump was restored into another cluster.

    Return how many events were changed. Run it once, before any other process. Events lose the transaction ids of
    the old cluster, and each reader continues at the first event that it had not applied. From then on the old
    events are read in the order of their ids, which differs slightly from the previous order: some events around
    that first one may be applied twice.
    """
    with connection.cursor() as sql:
        sql.execute(_AFTER_RESTORE)
    FailedEvent.objects.update(xid=0)
    return Event.objects.filter(xid__gt=0).update(xid=0)
