"""Write the event log. `readers` reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.db.instances import new_instance
from dispatch.core.db.prepared import EVENTS, integers, texts
from dispatch.core.models import Event


@dataclass(frozen=True)
class Actor:
    """The person or system that acted. `type` is user, api_key, technician, customer, provider or system."""

    type: str = "system"
    id: int | None = None
    label: str = "Dispatch"


SYSTEM = Actor()
_subscribers: list[Callable[[Event], None]] = []


def on_append(subscriber: Callable[[Event], None]) -> None:
    """Call `subscriber` with each event that this process appends, in its transaction.

    The event has its primary key after the commit. For live updates, which may be lost. Code that must not miss an
    event uses a reader (`readers`).
    """
    if subscriber not in _subscribers:
        _subscribers.append(subscriber)


@dataclass(frozen=True)
class NewEvent:
    """An Event before it is written: alone by `append`, or with its row by `core.db.fast_rows`.

    `kind` is "<subject>.<verb>"; the part before the dot is the subject's type. `data` must be JSON.
    """

    organization_id: int
    kind: str
    actor: Actor = SYSTEM
    data: dict[str, Any] = field(default_factory=dict)

    def values(self, subject_id: int) -> tuple[Any, ...]:
        """Return the values for `insert`."""
        organization_id, kind, subject_type, *rest = self.values_without_subject()
        return (organization_id, kind, subject_type, subject_id, *rest)

    def values_without_subject(self) -> tuple[Any, ...]:
        """Return the values for `insert_about`, which follow the values of the new row."""
        actor = self.actor
        return (
            self.organization_id, self.kind, self.kind.split(".", 1)[0], actor.type, actor.id, actor.label[:120],
            Jsonb(self.data), clock.now(),
        )  # fmt: skip


def append(organization_id: int, kind: str, subject_id: int, /, *, actor: Actor = SYSTEM, **data: Any) -> Event:
    """Append one Event. Call it inside the transaction of the change, after the subject's row is locked.

    `kind` is "<subject>.<verb>"; the part before the dot is the subject's type. `data` must be JSON.
    """
    new = NewEvent(organization_id, kind, actor, data)
    event = unsaved(new, subject_id)
    ((event.pk,),) = prepared.fetch_all(_APPEND, new.values(subject_id))
    appended(event)
    return event


def append_later(new: NewEvent, subject_id: int) -> None:
    """Append one Event like `append`, with the next statement of the transaction."""
    event = unsaved(new, subject_id)

    def identify(result: prepared.Result) -> None:
        ((event.pk,),) = result.fetchall()

    prepared.change_later(_APPEND, new.values(subject_id), then=identify)
    appended(event)


def unsaved(new: NewEvent, subject_id: int) -> Event:
    """Return the Event without its primary key."""
    event: Event = new_instance(
        Event,
        organization_id=new.organization_id,
        kind=new.kind,
        subject_type=new.kind.split(".", 1)[0],
        subject_id=subject_id,
        actor_type=new.actor.type,
        actor_id=new.actor.id,
        actor_label=new.actor.label[:120],
        data=new.data,
    )
    return event


def appended(event: Event) -> None:
    """Notify the subscribers of an Event that this transaction writes, now or with its next statement."""
    for subscriber in _subscribers:
        subscriber(event)


# Hand-written, because every change runs it: it costs a third of the ORM's insert.
def insert(count: int = 1) -> str:
    """Return the statement that inserts `count` events and returns their ids."""
    return f"{prepared.EVENTS} VALUES {', '.join(['(%s, %s, %s, %s, %s, %s, %s, %s, %s)'] * count)} RETURNING id"


def insert_about(made: str) -> str:
    """Return the statement that runs `made` (an INSERT … RETURNING id) and writes the event about its row.

    It returns the ids of row and event, or nothing if no row was inserted.
    """
    return (
        f"WITH made AS ({made}) {prepared.EVENTS} SELECT %s::bigint, %s::text, %s::text, made.id, %s::text,"
        " %s::bigint, %s::text, %s::jsonb, %s::timestamptz FROM made RETURNING subject_id, id"
    )


_APPEND = insert()


class EventRow(NamedTuple):
    """One event of a batch. `kind` and `data` as for `append`, or `data` as JSON text."""

    organization_id: int
    kind: str
    subject_id: int
    data: dict[str, Any] | str


_APPEND_MANY = f"""
{EVENTS}
SELECT v.organization_id, v.kind, split_part(v.kind, '.', 1), v.subject_id, %(actor_type)s, %(actor_id)s::bigint,
       %(actor_label)s, v.data::jsonb, %(now)s
FROM unnest(%(organizations)s::bigint[], %(kinds)s::text[], %(subjects)s::bigint[], %(data)s::text[])
     AS v(organization_id, kind, subject_id, data)
"""


def append_many(items: Sequence[EventRow], *, actor: Actor = SYSTEM) -> None:
    """Append events in order with one statement, which is sent with the next one, or the commit.

    Like `append`, call it inside the transaction of the changes.
    """
    if not items:
        return
    given = {
        "organizations": integers(item.organization_id for item in items),
        "kinds": texts(item.kind for item in items),
        "subjects": integers(item.subject_id for item in items),
        "data": texts(item.data if isinstance(item.data, str) else json.dumps(item.data) for item in items),
    }
    who = {"actor_type": actor.type, "actor_id": actor.id, "actor_label": actor.label[:120]}
    prepared.change_later(_APPEND_MANY, {**given, **who, "now": clock.now()})
