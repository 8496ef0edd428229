"""Writing the event log. Reading it is in `readers`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from dispatch.core import clock, statements
from dispatch.core.models import Event
from dispatch.core.statements import EVENTS, do, integers, texts


@dataclass(frozen=True)
class Actor:
    """Who did it: `type` is user, api_key, technician, customer, provider or system."""

    type: str = "system"
    id: int | None = None
    label: str = "Dispatch"


SYSTEM = Actor()
_heard: list[Callable[[Event], None]] = []


def on_append(heard: Callable[[Event], None]) -> None:
    """Has `heard` called with each event appended in this process, in its transaction. For hints that may be lost;
    who must not miss one is a reader (`readers`)."""
    if heard not in _heard:
        _heard.append(heard)


@dataclass(frozen=True)
class NewEvent:
    """An Event to be: `append` writes it on its own, `core.rows` together with the row that it is about.

    `kind` is "<subject>.<verb>"; what stands before the dot is the subject's type. `data` must be JSON."""

    organization_id: int
    kind: str
    actor: Actor = SYSTEM
    data: dict[str, Any] = field(default_factory=dict)

    def values(self, subject_id: int) -> tuple[Any, ...]:
        """For `insert`."""
        whose, kind, subject_type, *rest = self.values_without_subject()
        return (whose, kind, subject_type, subject_id, *rest)

    def values_without_subject(self) -> tuple[Any, ...]:
        """For `insert_about`, after the values of what is made."""
        actor = self.actor
        return (
            self.organization_id, self.kind, self.kind.split(".", 1)[0], actor.type, actor.id, actor.label[:120],
            Jsonb(self.data), clock.now(),
        )  # fmt: skip


def append(organization_id: int, kind: str, subject_id: int, /, *, actor: Actor = SYSTEM, **data: Any) -> Event:
    """Appends one Event; call it inside the transaction of the change, after the subject's row is locked.

    `kind` is "<subject>.<verb>"; what stands before the dot is the subject's type. `data` must be JSON."""
    new = NewEvent(organization_id, kind, actor, data)
    ((pk,),) = statements.rows(_APPEND, new.values(subject_id))
    return appended(new, subject_id, pk)


def appended(new: NewEvent, subject_id: int, pk: int) -> Event:
    """The Event as it was written just now; whoever listens has heard of it."""
    event = Event(
        id=pk,
        organization_id=new.organization_id,
        kind=new.kind,
        subject_type=new.kind.split(".", 1)[0],
        subject_id=subject_id,
        actor_type=new.actor.type,
        actor_id=new.actor.id,
        actor_label=new.actor.label[:120],
        data=new.data,
    )
    for heard in _heard:
        heard(event)
    return event


# By hand, for every change of anything pays for it: a third of what the ORM's insert costs.
def insert(count: int = 1) -> str:
    """The statement that writes so many events, and returns their ids."""
    return f"{statements.EVENTS} VALUES {', '.join(['(%s, %s, %s, %s, %s, %s, %s, %s, %s)'] * count)} RETURNING id"


def insert_about(made: str) -> str:
    """The statement that runs `made` (an INSERT … RETURNING id) and writes the event about its row; it returns the
    ids of row and event, or nothing when nothing was made."""
    return (
        f"WITH made AS ({made}) {statements.EVENTS} SELECT %s::bigint, %s::text, %s::text, made.id, %s::text,"
        " %s::bigint, %s::text, %s::jsonb, %s::timestamptz FROM made RETURNING subject_id, id"
    )


_APPEND = insert()


class EventLine(NamedTuple):
    """One line of a batch; `kind` and `data` as for `append`, or `data` as the text of its JSON."""

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


def append_many(items: Sequence[EventLine], *, actor: Actor = SYSTEM) -> None:
    """Appends them in order by one statement; as `append`, inside the transaction of the changes."""
    if not items:
        return
    given = {
        "organizations": integers(item.organization_id for item in items),
        "kinds": texts(item.kind for item in items),
        "subjects": integers(item.subject_id for item in items),
        "data": texts(item.data if isinstance(item.data, str) else json.dumps(item.data) for item in items),
    }
    who = {"actor_type": actor.type, "actor_id": actor.id, "actor_label": actor.label[:120]}
    do(_APPEND_MANY, {**given, **who, "now": clock.now()})
