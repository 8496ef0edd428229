"""Send an endpoint the events that it missed: those since a time, of its event types, without a message to it.

An endpoint misses events that happened before it was created, before it subscribed to their types, or while it
was disabled for longer than OUTBOX_DISABLED_KEEP_S. Events whose messages retention has deleted count as missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, Max, OuterRef, Q

from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor, own_cursors
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.outbox.event_reader import READER, EventBody, body_of, is_wanted, message_of
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules import conditions
from dispatch.outbox.rules.ordering import ABOUT_FAILURES
from dispatch.outbox.services.creation_times import MARGIN, first_id, shift_time
from dispatch.outbox.services.intake import accept_messages

MAX_EVENTS = 2000
BATCH = 200
# A condition is tried on events among this many of the last ones of the installation.
MAX_LOOKED_BACK = 100_000


@dataclass(frozen=True)
class MissedEvents:
    """Missed events, oldest first, at most MAX_EVENTS.

    `next_after_id` continues after them; None: there are no more.
    """

    events: list[Event]
    next_after_id: int | None

    @property
    def types(self) -> list[tuple[str, int]]:
        """Return the types with their counts, most frequent first."""
        return Counter(event.kind for event in self.events).most_common()


def find_missed(
    endpoint: Endpoint, since: datetime, until: datetime | None = None, after_id: int = 0
) -> MissedEvents:
    """Return the events since a moment that the endpoint missed. Creates nothing.

    Events that the reader has not reached yet are not missed.
    """
    own = Event.objects.filter(organization_id=endpoint.organization_id).order_by()
    found = own.filter(_of_types(endpoint.event_types), _read_already(endpoint), at__gte=since, pk__gt=after_id)
    found = found.filter(pk__gte=first_id(own, "at", shift_time(since, -MARGIN)))
    if until is not None:
        found = found.filter(at__lt=until, pk__lt=first_id(own, "at", shift_time(until, MARGIN)))
    sent = Message.objects.filter(endpoint_id=endpoint.pk, event_id=OuterRef("pk"))
    rows = list(found.filter(~Exists(sent)).order_by("pk")[: MAX_EVENTS + 1])
    kept = [event for event in rows[:MAX_EVENTS] if is_wanted(EventBody(event), endpoint)]
    return MissedEvents(kept, rows[MAX_EVENTS - 1].pk if len(rows) > MAX_EVENTS else None)


def send_missed(
    endpoint: Endpoint,
    since: datetime,
    until: datetime | None = None,
    after_id: int = 0,
    *,
    actor: Actor,
    note: str = "",
) -> MissedEvents:
    """Create the messages of the missed events, in order, and return the events.

    They come after the messages that are already waiting. An interrupted call can be repeated: an event has at
    most one message to an endpoint. Raises Conflict if the endpoint is disabled, and LimitReached.
    """
    if endpoint.disabled_at is not None:
        raise Conflict(_("This endpoint is disabled. Enable it first."), code="illegal_transition")
    missed = find_missed(endpoint, since, until, after_id)
    for batch in _batches(missed.events):
        messages = [message_of(EventBody(event), endpoint) for event in batch]
        accept_messages(endpoint.organization_id, messages, actor=actor)
    if missed.events:
        events.append(
            endpoint.organization_id, "endpoint.missed_sent", endpoint.pk, actor=actor, name=endpoint.name,
            messages=len(missed.events), since=since.isoformat(), reason=note,
        )  # fmt: skip
    return missed


@dataclass(frozen=True)
class Tried:
    """A recent event of an endpoint's types, and whether a condition holds for it.

    `error` says why the condition cannot be evaluated on it.
    """

    event: Event
    holds: bool
    error: str = ""


def try_condition(endpoint: Endpoint, condition: str, count: int = 20) -> list[Tried]:
    """Evaluate a condition on the latest events of the endpoint's types, newest first. Raises InvalidCondition."""
    own = Event.objects.filter(organization_id=endpoint.organization_id)
    last = own.aggregate(id=Max("id"))["id"] or 0
    found = own.filter(_of_types(endpoint.event_types), pk__gt=last - MAX_LOOKED_BACK).order_by("-pk")[:count]
    return [_try(condition, event) for event in found]


def _try(condition: str, event: Event) -> Tried:
    try:
        return Tried(event, conditions.evaluate_condition(condition, body_of(event)))
    except conditions.ConditionFailed as error:
        return Tried(event, False, str(error))


def _batches(found: list[Event]) -> Iterable[list[Event]]:
    return (found[first : first + BATCH] for first in range(0, len(found), BATCH))


def _of_types(event_types: Iterable[str]) -> Q:
    """Return the condition of `rules.ordering.passes_filter` in SQL, so that LIMIT counts only these events."""
    of_types = Q(pk__in=[])
    for wanted in event_types:
        if wanted == "*":
            of_types |= ~Q(kind__startswith="message.")
        elif wanted.endswith(".*"):
            of_types |= Q(kind__startswith=wanted[:-1]) & ~Q(kind__startswith="message.")
        elif not wanted.startswith("message.") or wanted in ABOUT_FAILURES:
            of_types |= Q(kind=wanted)
    return of_types


def _read_already(endpoint: Endpoint) -> Q:
    """Return the condition that the outbox's reader has passed the event: later ones become messages anyway."""
    cursor = own_cursors.position(READER.name, endpoint.organization_id)
    return Q(xid__lt=cursor.xid) | Q(xid=cursor.xid, pk__lte=cursor.event_id)
