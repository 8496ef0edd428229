"""List the types of messages that endpoints can subscribe to: Dispatch's own, and an organization's.

`event_types.json` describes the events of Dispatch. `python -m tests.event_types` writes it from events that tests
caused; a test validates real deliveries against it. Its descriptions are marked as a whole: the API and schemas
have them in English, and pages in the language of the reader.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db.models import F

from dispatch.core.languages import gettext as _
from dispatch.outbox.models import EventType, EventTypeVersion
from dispatch.outbox.rules import schemas

FILE = Path(__file__).with_name("event_types.json")


@dataclass(frozen=True)
class CatalogEntry:
    """A type of messages. `schema` and `example` are None if the organization gave none."""

    name: str
    description: str
    is_built_in: bool
    version: int
    is_enforced: bool = False
    schema: Mapping[str, Any] | None = None
    example: Any = None

    @property
    def subject(self) -> str:
        return self.name.partition(".")[0]

    @property
    def shown_description(self) -> str:
        """The description in the reader's language. An organization's own types have the one that it entered."""
        return _(self.description) if self.is_built_in else self.description


@functools.cache
def built_in() -> Mapping[str, CatalogEntry]:
    """Return Dispatch's own types by name, in the order of names."""
    return {
        name: CatalogEntry(
            name, given["description"], True, 1, schema=schema, example=schemas.build_example(schema)
        )
        for name, given in sorted(json.loads(FILE.read_text()).items())
        for schema in (build_schema(name, given),)
    }


def subjects() -> frozenset[str]:
    """Return the subjects of Dispatch's own types, such as "job"."""
    return frozenset({entry.subject for entry in built_in().values()} | {"message", "endpoint", "event_type"})


def catalog_of(organization_id: int) -> list[CatalogEntry]:
    """Return all types that can be subscribed to: the organization's own, then those of Dispatch."""
    types = list(EventType.objects.of(organization_id).filter(archived_at=None))
    current = EventTypeVersion.objects.of(organization_id).filter(number=F("event_type__version"))
    versions = {row.event_type_id: row for row in current.filter(event_type__in=types)}
    own = []
    for row in types:
        version = versions.get(row.pk)
        schema, example = (version.schema, version.example) if version else (None, None)
        if example is None and schema is not None:
            example = schemas.build_example(schema)
        own.append(CatalogEntry(row.name, row.description, False, row.version, row.is_enforced, schema, example))
    return [*own, *built_in().values()]


def count_subscribers(subscriptions: Mapping[str, int], entry: CatalogEntry) -> int:
    """Return how many endpoints have a subscription that includes the type. `subscriptions`: pattern → endpoints.

    An endpoint that names both the type and its subject counts twice.
    """
    wanted = [entry.name] if entry.subject == "message" else [entry.name, f"{entry.subject}.*", "*"]
    return sum(subscriptions.get(pattern, 0) for pattern in wanted)


def build_schema(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the payload of an event, as `event_reader.body_of` builds it.

    `given["actors"]` and `given["fields"]` are the actors and the fields that were observed. Others are allowed,
    since new fields may be added.
    """
    subject = {
        "type": "object",
        "properties": {"type": {"const": name.partition(".")[0]}, "id": {"type": "integer"}},
        "required": ["type", "id"],
    }
    actor = {
        "type": "object",
        "description": "The person or system that acted.",
        "properties": {
            "type": {"type": "string", "examples": given["actors"][:1] or ["system"]},
            "id": {"type": ["integer", "null"]},
            "label": {"type": "string", "examples": ["Dispatch"]},
        },
        "required": ["type", "id", "label"],
    }
    fields = {field: {"type": types[0] if len(types) == 1 else types} for field, types in given["fields"].items()}
    return {
        "$schema": schemas.DRAFT,
        "title": name,
        "description": given["description"],
        "type": "object",
        "properties": {
            "type": {"const": name},
            "timestamp": {"type": "string", "format": "date-time"},
            "data": {
                "type": "object",
                "properties": {
                    **fields, "event_id": {"type": "integer"}, "subject": subject, "actor": actor,
                },
                "required": ["event_id", "subject", "actor", *given.get("required", [])],
            },
        },
        "required": ["type", "timestamp", "data"],
    }  # fmt: skip
