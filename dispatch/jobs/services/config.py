"""Write service types and policies together with an Event that names the actor and the changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import time
from typing import Any

from django.db import models, transaction
from phonenumber_field.phonenumber import PhoneNumber

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext
from dispatch.core.stored_texts import stored_name
from dispatch.jobs import policies
from dispatch.jobs.models import (
    CustomerTextPolicy,
    DispatchPolicy,
    Job,
    PublicForm,
    ServiceType,
    TechnicianNotice,
)
from dispatch.jobs.rules import quiet_hours
from dispatch.technicians.models import Skill

Setup = ServiceType | DispatchPolicy | PublicForm | CustomerTextPolicy
QUIET_FIELDS = frozenset(quiet_hours.FIELDS)
SUBJECTS: Mapping[type, str] = {
    ServiceType: "service_type",
    DispatchPolicy: "policy",
    PublicForm: "public_form",
    CustomerTextPolicy: "customer_texts",
}


def save_config(write: Callable[[], Setup], changed: Mapping[str, Any], *, actor: Actor, is_new: bool) -> None:
    """Store a row and its relations through `write`, and append the Event in the same transaction.

    The Event is "added" with the values set, or "changed" with the new value of each field in `changed`. Without a
    change, no Event is appended.
    """
    with transaction.atomic():
        row = write()
        values = {name: _plain_value(value) for name, value in changed.items() if name != "organization"}
        if is_new:
            set_values = {name: value for name, value in values.items() if value not in (None, "", [])}
            _append_event(row, "added", actor, changes=set_values)
        elif values:
            _append_event(row, "changed", actor, changes=values)
        if QUIET_FIELDS & values.keys():
            wake_quiet_jobs(row.organization_id)


def wake_quiet_jobs(organization_id: int) -> None:
    """Make jobs and notices that wait for the end of quiet hours check again, because the hours have changed."""
    waiting = Job.objects.of(organization_id).filter(
        status=Job.Status.DISPATCHING, waiting_for=Job.WaitingFor.QUIET_HOURS, paused_at=None
    )
    waiting.update(next_action_at=clock.now())
    notices = TechnicianNotice.objects.of(organization_id).filter(
        status=TechnicianNotice.Status.SENDING, next_action_at__isnull=False, deferred_until__isnull=False
    )
    notices.update(next_action_at=clock.now())


def delete_config(policy: DispatchPolicy, *, actor: Actor) -> None:
    """Delete a policy. Raises Conflict if a service type's policy would be invalid without it."""
    with transaction.atomic():
        policies.check_removable(policy)
        _append_event(policy, "removed", actor)
        policy.delete()
        wake_quiet_jobs(policy.organization_id)


def check_unused(skill: Skill) -> None:
    """Raise Conflict if service types use the skill: without it, their jobs would go to other technicians."""
    services = ServiceType.objects.of(skill.organization_id)
    users = services.filter(models.Q(required_skills=skill) | models.Q(preferred_skills=skill)).distinct()
    if names := list(users.values_list("name", flat=True)[:3]):
        words = gettext("Service types use this skill: {names}. Remove it there first.")
        raise Conflict(words.format(names=", ".join(names)), code="in_use")


def _append_event(row: Setup, verb: str, actor: Actor, **data: Any) -> None:
    kind = f"{SUBJECTS[type(row)]}.{verb}"
    events.append(row.organization_id, kind, row.pk, actor=actor, name=stored_name(row)[:120], **data)


def _plain_value(value: Any) -> Any:
    """Return a value as the event log stores it: relations by name."""
    if isinstance(value, models.Model):
        return str(value)
    if isinstance(value, time):
        return f"{value:%H:%M}"
    if isinstance(value, PhoneNumber):
        return value.as_e164
    if isinstance(value, models.QuerySet | list | tuple):
        return [_plain_value(item) for item in value]
    return value
