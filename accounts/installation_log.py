"""Record changes outside of any organization in the installation's audit log (`dispatch.core.audit`).

They concern users, rows that apply to all organizations, and queues. The events hold ids and names of fields only,
no names of people: erasing a person leaves this log as it is.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import models

from dispatch.core import events
from dispatch.core.audit.chain import INSTALLATION
from dispatch.core.events import SYSTEM, Actor


def append_event(kind: str, subject_id: int, *, actor: Actor, **data: Any) -> None:
    """Append an event to the installation's log, with the actor's id instead of their name."""
    if actor.type != SYSTEM.type:
        actor = Actor(actor.type, actor.id, f"{actor.type} {actor.id}")
    events.append(INSTALLATION, kind, subject_id, actor=actor, **data)


def record_change(row: models.Model, verb: str, message: Any, *, actor: Actor) -> None:
    """Record that a row without an organization was added, changed or deleted in the admin.

    `message` is that of the admin's log: a fixed text, or the names of the changed fields.
    """
    data: dict[str, Any] = {"note": message} if isinstance(message, str) else {"fields": _changed_fields(message)}
    if isinstance(row, AbstractBaseUser):
        append_event(f"user.{verb}", row.pk, actor=actor, **data)
    else:
        append_event(f"installation.row_{verb}", row.pk, actor=actor, table=row._meta.label, **data)


def _changed_fields(message: Any) -> list[str]:
    """Return the names of fields in a structured message of the admin's log."""
    parts = message if isinstance(message, list) else []
    return [str(name) for part in parts for change in part.values() for name in change.get("fields", ())]
