"""Writing the event log. Reading it is in `readers`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import connection
from psycopg.types.json import Jsonb

from dispatch.core import clock
from dispatch.core.models import Event

# By hand, for every change of anything pays for it: a third of what the ORM's insert costs.
_APPEND = """
INSERT INTO core_event
    (organization_id, kind, subject_type, subject_id, actor_type, actor_id, actor_label, data, at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING id, xid
"""


@dataclass(frozen=True)
class Actor:
    """Who did it: `type` is user, api_key, technician, provider or system."""

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


def append(organization_id: int, kind: str, subject_id: int, /, *, actor: Actor = SYSTEM, **data: Any) -> Event:
    """Appends one Event; call it inside the transaction of the change, after the subject's row is locked.

    `kind` is "<subject>.<verb>"; what stands before the dot is the subject's type. `data` must be JSON."""
    event = Event(
        organization_id=organization_id,
        kind=kind,
        subject_type=kind.split(".", 1)[0],
        subject_id=subject_id,
        actor_type=actor.type,
        actor_id=actor.id,
        actor_label=actor.label[:120],
        data=data,
        at=clock.now(),
    )
    row: Any = (
        event.organization_id, kind, event.subject_type, subject_id, actor.type, actor.id, event.actor_label,
        Jsonb(data), event.at,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_APPEND, row)
        event.pk, event.xid = cursor.fetchone()
    for heard in _heard:
        heard(event)
    return event
