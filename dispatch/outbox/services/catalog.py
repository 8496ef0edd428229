"""Manage an organization's event types, validate payloads against them, and publish messages to subscribers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from accounts.models import Organization
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.db.stored_json import is_same_json
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.languages import gettext as _
from dispatch.outbox import catalog
from dispatch.outbox.models import Endpoint, EventType, EventTypeVersion
from dispatch.outbox.rules import conditions, schemas
from dispatch.outbox.rules.ordering import passes_filter
from dispatch.outbox.services.intake import Accepted, NewMessage, accept_messages

MAX_TYPES = 500
MAX_VERSIONS = 100
MAX_EXAMPLE_LENGTH = 32_768
_NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
TOO_EXPENSIVE = "Validating this payload takes too long. Send less in one message, or simplify the schema."


def check_name(name: str) -> None:
    """Accept "order.changed", unless its subject is one of Dispatch's own. Raises ValidationError."""
    if not _NAME.fullmatch(name):
        raise ValidationError(
            _('Enter a subject and a verb such as "order.changed", in lowercase.'), code="invalid"
        )
    if (subject := name.partition(".")[0]) in catalog.subjects():
        words = _('"{subject}.*" are events of Dispatch. Choose another subject.')
        raise ValidationError(words.format(subject=subject), code="reserved")


def check_content(schema: Any, example: Any) -> None:
    """Raise ValidationError by field unless the schema can be used and the example matches it."""
    if example is not None and len(json.dumps(example)) > MAX_EXAMPLE_LENGTH:
        raise ValidationError(
            {"example": _("Must be at most {most} characters.").format(most=f"{MAX_EXAMPLE_LENGTH:,}")}
        )
    if schema is None:
        return
    try:
        schemas.check_schema(schema)
    except schemas.InvalidSchema as error:
        raise ValidationError({"schema": str(error)}) from None
    if example is not None and (problems := _problems(schema, example)):
        path, text = next(iter(problems.items()))
        raise ValidationError({"example": f"{path}: {text}" if path else text})


def create_type(organization: Organization, fields: Mapping[str, Any], *, actor: Actor = SYSTEM) -> EventType:
    """Create an event type, with its first version if a schema or an example is given. Raises Conflict."""
    given = dict(fields)
    content = given.pop("schema", None), given.pop("example", None)
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if EventType.objects.of(organization.pk).count() >= MAX_TYPES:
            words = _("There are {most} event types, which is the maximum.")
            raise Conflict(words.format(most=MAX_TYPES), code="too_many")
        try:
            with transaction.atomic():
                row = EventType.objects.create(**{**given, "organization": organization})
        except IntegrityError:
            words = _("The event type {name} already exists.").format(name=given["name"])
            raise Conflict(words, code="duplicate") from None
        if content != (None, None):
            _add_version(row, *content)
        _append_event(row, "added", actor)
    return row


def change_type(type_id: int, changes: Mapping[str, Any], *, actor: Actor = SYSTEM) -> EventType:
    """Change an event type. Another schema or example makes a new version; earlier ones are kept."""
    given = dict(changes)
    with transaction.atomic():
        row = EventType.objects.select_for_update(no_key=True).get(pk=type_id)
        before = current_content(row)
        content = given.pop("schema", before[0]), given.pop("example", before[1])
        changed = {name: value for name, value in given.items() if getattr(row, name) != value}
        for name, value in changed.items():
            setattr(row, name, value)
        row.save(update_fields=list(changed)) if changed else None
        if not is_same_json(before, content):
            _add_version(row, *content)
            changed["version"] = row.version
        if changed:
            _append_event(row, "changed", actor, fields=sorted(changed), version=row.version)
    return row


def archive_type(type_id: int, *, actor: Actor) -> bool:
    """Hide an event type from the catalog; endpoints keep their subscriptions. False: it was archived already."""
    return _set_archived(type_id, True, actor)


def restore_type(type_id: int, *, actor: Actor) -> bool:
    """Show an archived event type again. Return False if it was not archived."""
    return _set_archived(type_id, False, actor)


def current_content(row: EventType) -> tuple[Any, Any]:
    """Return the schema and the example of the current version."""
    found = EventTypeVersion.objects.filter(event_type=row, number=row.version).first()
    return (found.schema, found.example) if found else (None, None)


def check_payload(row: EventType, payload: Any) -> dict[str, str]:
    """Return what is wrong with a payload by the type's current schema (path → message)."""
    schema, _ = current_content(row)
    return _problems(schema, payload) if schema is not None else {}


class PayloadValidator:
    """Validate payloads of one organization's messages; read each type once."""

    def __init__(self, organization_id: int) -> None:
        self._organization_id = organization_id
        self._schemas: dict[str, Any] = {}

    def problems(self, name: str, payload: Any) -> dict[str, str]:
        """Return what is wrong with a payload (path → message), if the type refuses payloads that do not match."""
        if name not in self._schemas:
            own = EventType.objects.of(self._organization_id).filter(name=name, is_enforced=True).first()
            self._schemas[name] = current_content(own)[0] if own else None
        schema = self._schemas[name]
        return _problems(schema, payload) if schema is not None else {}


def publish(
    organization_id: int,
    event_type: str,
    payload: Any,
    *,
    group: str | None = None,
    actor: Actor = SYSTEM,
) -> list[tuple[Endpoint, Accepted]]:
    """Create a message for each endpoint that subscribes to the type and whose condition holds for the payload.

    Disabled endpoints get none. The caller has validated the payload.
    """
    endpoints = Endpoint.objects.of(organization_id).exclude(event_types=[]).filter(disabled_at=None)
    wanted = [
        endpoint
        for endpoint in endpoints.defer(*Endpoint.CREDENTIALS).order_by("pk")
        if passes_filter(endpoint.event_types, event_type) and _holds(endpoint, payload)
    ]
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    items = [NewMessage(type=event_type, payload=text, endpoint=endpoint, group=group) for endpoint in wanted]
    return list(zip(wanted, accept_messages(organization_id, items, actor=actor), strict=True))


def _holds(endpoint: Endpoint, payload: Any) -> bool:
    try:
        return conditions.evaluate_condition(endpoint.condition, payload)
    except (conditions.InvalidCondition, conditions.ConditionFailed):
        return False


def _problems(schema: Mapping[str, Any], payload: Any) -> dict[str, str]:
    try:
        return schemas.validate_payload(schema, payload)
    except schemas.TooExpensive:
        return {"": TOO_EXPENSIVE}


def _add_version(row: EventType, schema: Any, example: Any) -> None:
    if row.version >= MAX_VERSIONS:
        words = _("There are {most} versions, which is the maximum.")
        raise Conflict(words.format(most=MAX_VERSIONS), code="too_many")
    row.version += 1
    EventTypeVersion.objects.create(
        organization_id=row.organization_id, event_type=row, number=row.version, schema=schema, example=example
    )
    row.save(update_fields=["version"])


def _set_archived(type_id: int, archived: bool, actor: Actor) -> bool:
    with transaction.atomic():
        row = EventType.objects.select_for_update(no_key=True).get(pk=type_id)
        if (row.archived_at is not None) == archived:
            return False
        row.archived_at = clock.now() if archived else None
        row.save(update_fields=["archived_at"])
        _append_event(row, "archived" if archived else "restored", actor)
    return True


def _append_event(row: EventType, verb: str, actor: Actor, **data: Any) -> None:
    events.append(row.organization_id, f"event_type.{verb}", row.pk, actor=actor, name=row.name, **data)
