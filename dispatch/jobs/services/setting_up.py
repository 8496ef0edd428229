"""What Admins set up, service types and policies: written with an Event that names who changed what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.db import models, transaction

from dispatch.core import events
from dispatch.core.events import Actor
from dispatch.jobs import policies
from dispatch.jobs.models import DispatchPolicy, PublicForm, ServiceType

Setup = ServiceType | DispatchPolicy | PublicForm
SUBJECTS: Mapping[type, str] = {ServiceType: "service_type", DispatchPolicy: "policy", PublicForm: "public_form"}


def save(write: Callable[[], Setup], changed: Mapping[str, Any], *, actor: Actor, is_new: bool) -> None:
    """Has `write` store a row as its form says, relations too, and appends what happened in the same transaction:
    "added" with what is set, or "changed" with the new value of each field in `changed`; nothing when the row was
    sent as it is."""
    with transaction.atomic():
        row = write()
        told = {name: _plain(value) for name, value in changed.items() if name != "organization"}
        if is_new:
            given = {name: value for name, value in told.items() if value not in (None, "", [])}
            _note(row, "added", actor, changes=given)
        elif told:
            _note(row, "changed", actor, changes=told)


def remove(policy: DispatchPolicy, *, actor: Actor) -> None:
    """Deletes a policy. Raises Conflict when one below would not work without it."""
    with transaction.atomic():
        policies.check_removable(policy)
        _note(policy, "removed", actor)
        policy.delete()


def _note(row: Setup, verb: str, actor: Actor, **data: Any) -> None:
    kind = f"{SUBJECTS[type(row)]}.{verb}"
    events.append(row.organization_id, kind, row.pk, actor=actor, name=str(row)[:120], **data)


def _plain(value: Any) -> Any:
    """As the log keeps it: relations by what they are called."""
    if isinstance(value, models.Model):
        return str(value)
    if isinstance(value, models.QuerySet | list | tuple):
        return [_plain(one) for one in value]
    return value
