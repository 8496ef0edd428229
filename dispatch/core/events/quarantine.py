"""Keep events that a durable reader failed to handle, so that the reader continues with the others.

A failed event is retried with backoff. After MAX_ATTEMPTS it is quarantined: shown to users, counted under an
alert rule, and reported to the Admins of its organization; retries continue until one succeeds or an operator
discards the event. If the reader has an order, later events with the same key are held until the earlier ones
are handled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import structlog
from django.db import connection, transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.db.errors import is_database_away, is_lock_timeout
from dispatch.core.events import log as event_log
from dispatch.core.models import Event, FailedEvent

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 5
FIRST_RETRY_S, MAX_RETRY_S = 2.0, 600.0
# A reader with this number of failed and held events stops instead of continuing: everything fails.
MAX_KEPT = 10_000
# With this number of one organization, the reader stops for it alone.
MAX_KEPT_OF_ONE = 1000
# After this number of lock timeouts in one step, the rest waits for the next step.
MAX_LOCK_TIMEOUTS = 8
# How many failed events one step retries, and how many events held behind each.
RETRIES, FOLLOWERS = 20, 200
QUARANTINED, RELEASED = "event.quarantined", "event.released"

_HELD_KEYS = "SELECT DISTINCT key FROM core_failedevent WHERE reader = %(reader)s AND key <> ''"

Handle = Callable[[list[Event]], None]
Key = Callable[[Event], str]


class ReaderStopped(RuntimeError):
    """Too many events of a reader failed; it does not continue until some are handled or discarded."""

    def __init__(self, reader: str) -> None:
        super().__init__(f"The reader {reader} has {MAX_KEPT} failed events. See `manage.py failed_events`.")


def apply(reader: str, events: Sequence[Event], handle: Handle, key: Key | None, held: set[str]) -> int:
    """Handle the events in order, and return how many of them the reader may move past.

    One that fails is kept for later, as are those that must wait for it: events with the keys `held` wait for
    earlier ones. Runs in the transaction that moves the cursor. Raises if the database is unavailable.
    """
    ready = [event for event in events if not key or key(event) not in held]
    waiting = [event for event in events if key and key(event) in held]
    try:
        with transaction.atomic():
            if ready:
                handle(ready)
    except Exception as error:
        if is_database_away(error):
            raise
        if len(events) > 1:
            return _apply_each(reader, events, handle, key, held)
        _quarantine(reader, events[0], key, error)
    else:
        for event in waiting:
            _quarantine(reader, event, key)
    return len(events)


def _apply_each(reader: str, events: Sequence[Event], handle: Handle, key: Key | None, held: set[str]) -> int:
    timeouts = 0
    for done, event in enumerate(events):
        if timeouts >= MAX_LOCK_TIMEOUTS:
            return done
        error = None if key and key(event) in held else _failure(handle, event)
        if error is None and not (key and key(event) in held):
            continue
        _quarantine(reader, event, key, error)
        timeouts += is_lock_timeout(error)
        if key:
            held.add(key(event))
    return len(events)


def _failure(handle: Handle, event: Event) -> Exception | None:
    """Handle one event in a savepoint; return what it raised."""
    try:
        with transaction.atomic():
            handle([event])
    except Exception as error:
        if is_database_away(error):
            raise
        return error
    return None


def retry_due(reader: str, handle: Handle) -> int:
    """Retry the reader's failed events that are due, and handle those held behind them.

    Return how many were handled. Runs in a transaction that holds the reader's cursor.
    """
    handled = timeouts = 0
    due = _first_of_each_key(reader).filter(next_attempt_at__lte=clock.now()).order_by("next_attempt_at", "pk")
    for row in list(due[:RETRIES]):
        if timeouts >= MAX_LOCK_TIMEOUTS:
            break
        followers = FailedEvent.objects.filter(reader=reader, key=row.key, attempts=0).exclude(pk=row.pk)
        chain = [row, *(followers.order_by("xid", "event_id")[:FOLLOWERS] if row.key else ())]
        for item in chain:
            event = Event.objects.filter(pk=item.event_id).first()
            error = _failure(handle, event) if event else None
            if error is not None:
                timeouts += is_lock_timeout(error)
                _failed_again(item, error)
                break
            _release(item, "handled" if event else "deleted")
            handled += 1
        else:
            if row.key:  # more may be held behind it
                following = _first_of_each_key(reader).filter(key=row.key)
                FailedEvent.objects.filter(pk__in=list(following.values("pk"))).update(next_attempt_at=clock.now())
    return handled


def stopped_organizations(reader: str) -> set[int]:
    """Return the organizations with MAX_KEPT_OF_ONE failed events: the reader must not read more of them."""
    rows = FailedEvent.objects.filter(reader=reader).order_by().values("organization_id")
    crowded = rows.annotate(kept=Count("pk")).filter(kept__gte=MAX_KEPT_OF_ONE)
    return set(crowded.values_list("organization_id", flat=True))


def has_due(reader: str) -> bool:
    """Return whether a failed event of the reader is due for a retry."""
    return _first_of_each_key(reader).filter(next_attempt_at__lte=clock.now()).exists()


def find_held_keys(reader: str) -> Callable[[], set[str]]:
    """Return a function for the keys of the reader's failed events. A pipeline does not wait for it."""
    find_rows = prepared.fetch_later(_HELD_KEYS, {"reader": reader})
    return lambda: {key for (key,) in find_rows()}


def _first_of_each_key(reader: str) -> QuerySet[FailedEvent]:
    earlier = FailedEvent.objects.filter(reader=reader, key=OuterRef("key")).filter(
        Q(xid__lt=OuterRef("xid")) | Q(xid=OuterRef("xid"), event_id__lt=OuterRef("event_id"))
    )
    rows: QuerySet[FailedEvent] = FailedEvent.objects.filter(reader=reader)
    return rows.filter(Q(key="") | ~Exists(earlier))


def _quarantine(reader: str, event: Event, key: Key | None, error: Exception | None = None) -> None:
    """Keep an event that failed; without `error`, one that waits for an earlier one."""
    if FailedEvent.objects.filter(reader=reader).count() >= MAX_KEPT:
        raise ReaderStopped(reader) from error
    row, is_new = FailedEvent.objects.get_or_create(
        reader=reader,
        event_id=event.pk,
        defaults={
            "xid": event.xid,
            "organization_id": event.organization_id,
            "kind": event.kind,
            "key": key(event)[:255] if key else "",
            "next_attempt_at": clock.now(),
        },
    )
    if error is not None and is_new:
        _failed_again(row, error)


def _failed_again(row: FailedEvent, error: Exception) -> None:
    row.attempts += 1
    pause_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(row.attempts - 1, 20))
    row.next_attempt_at = clock.now() + timedelta(seconds=pause_s)
    row.error = f"{type(error).__name__}: {error}"[:1000]
    is_quarantined = row.attempts >= MAX_ATTEMPTS and row.quarantined_at is None
    if is_quarantined:
        row.quarantined_at = clock.now()
    changed = {name: getattr(row, name) for name in ("attempts", "next_attempt_at", "error", "quarantined_at")}
    if not FailedEvent.objects.filter(pk=row.pk).update(**changed):
        return  # discarded during this attempt: `save` would insert it again
    log.warning(
        "event_not_handled",
        reader=row.reader, event_id=row.event_id, kind=row.kind, attempts=row.attempts, again_in_s=pause_s,
        exc_info=error if row.attempts in (1, MAX_ATTEMPTS) and not is_lock_timeout(error) else None,
    )  # fmt: skip
    if is_quarantined:
        log.error("event_quarantined", reader=row.reader, event_id=row.event_id, kind=row.kind)
        _notify(row, QUARANTINED, error=type(error).__name__)


def _release(row: FailedEvent, how: str) -> None:
    deleted, _ = FailedEvent.objects.filter(pk=row.pk).delete()
    if deleted and row.quarantined_at is not None:
        log.info("quarantined_event_released", reader=row.reader, event_id=row.event_id, how=how)
        _notify(row, RELEASED, how=how)


def _notify(row: FailedEvent, kind: str, **data: Any) -> None:
    if row.kind not in (QUARANTINED, RELEASED):  # a notice that fails causes no further one
        event_log.append(
            row.organization_id, kind, row.event_id, reader=row.reader, kind_of_event=row.kind, **data
        )


# --- For operators


def failed_events(reader: str = "", ids: Iterable[int] = ()) -> QuerySet[FailedEvent]:
    """Select failed and held events, oldest first: of one reader, or with these event ids, or all."""
    rows: QuerySet[FailedEvent] = FailedEvent.objects.order_by("reader", "xid", "event_id")
    rows = rows.filter(reader=reader) if reader else rows
    return rows.filter(event_id__in=list(ids)) if ids else rows


def retry_now(rows: QuerySet[FailedEvent]) -> int:
    """Make the events due; the reader retries them within seconds. Return how many."""
    return rows.update(next_attempt_at=clock.now())


def discard(rows: QuerySet[FailedEvent]) -> int:
    """Drop failed events: their reader never handles them. Return how many."""
    dropped = 0
    with transaction.atomic():
        for row in rows.select_for_update(no_key=True):
            _release(row, "discarded")
            dropped += 1
    return dropped


def counts() -> dict[tuple[str, str], int]:
    """Return the number of kept events by (reader, state): retrying, quarantined or held."""
    counts: dict[tuple[str, str], int] = {}
    with connection.cursor() as cursor:
        cursor.execute(_COUNTS)
        for reader, state, count in cursor.fetchall():
            counts[reader, state] = count
    return counts


_COUNTS = """
SELECT reader, CASE WHEN quarantined_at IS NOT NULL THEN 'quarantined' WHEN attempts = 0 THEN 'held'
                    ELSE 'retrying' END, count(*)
FROM core_failedevent GROUP BY 1, 2
"""


def quarantined(organization_id: int) -> int:
    """Return how many quarantined events the organization has."""
    return FailedEvent.objects.filter(organization_id=organization_id, quarantined_at__isnull=False).count()
