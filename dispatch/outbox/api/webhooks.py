"""Serve an OpenAPI 3.1 document of the webhooks that Dispatch sends, from which receivers can be generated.

Its webhooks are Dispatch's own event types, with the schemas of the event catalog.
"""

from __future__ import annotations

import threading
from typing import Any

from dispatch.core.api.schema_view import SchemaView
from dispatch.outbox import catalog
from dispatch.outbox.rules import schemas

# Header → description. The signature follows Standard Webhooks.
HEADERS = {
    "webhook-id": "The id of the message: the same in every attempt, so use it to detect repeated deliveries.",
    "webhook-timestamp": "When this attempt was sent, in Unix seconds.",
    "webhook-signature": "Signatures (v1, HMAC-SHA256) of id, timestamp and body, separated by spaces.",
    "Dispatch-Type": "The type of the message.",
    "Dispatch-Group": "The group within which messages arrive in order.",
    "Dispatch-Sequence": "The place of the message in its group.",
    "Dispatch-Call": "The number of the attempt, from 1.",
    "Dispatch-Replay": "How often the message was replayed.",
}
# Headers that a message may lack.
OPTIONAL = {"Dispatch-Group", "Dispatch-Replay"}
RESPONSES = {
    "2XX": "The message is delivered. Respond once it is stored, and process it later.",
    "410": "The receiver is gone: the endpoint is disabled.",
    "429": "Not now: the message is sent again after Retry-After, and no retry is spent.",
    "default": "The message is sent again at the next time of the endpoint's retry schedule.",
}


def build_document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = catalog.built_in()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dispatch webhooks",
            "version": "1",
            "description": "The requests that Dispatch sends to endpoints. New types and fields may be added.",
        },
        "jsonSchemaDialect": schemas.DRAFT,
        "webhooks": {name: {"post": _operation(entry)} for name, entry in types.items()},
        "components": {
            "parameters": {name: _header(name) for name in HEADERS},
            "schemas": {_component(name): _schema(entry) for name, entry in types.items()},
        },
    }


def _operation(entry: catalog.CatalogEntry) -> dict[str, Any]:
    content = {
        "schema": {"$ref": f"#/components/schemas/{_component(entry.name)}"},
        "example": entry.example,
    }
    return {
        "operationId": entry.name.replace(".", "_"),
        "summary": entry.name,
        "description": entry.description,
        "tags": [entry.subject],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in HEADERS],
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {code: {"description": description} for code, description in RESPONSES.items()},
    }


def _header(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": name not in OPTIONAL,
        "description": HEADERS[name],
        "schema": {"type": "string"},
    }


def _schema(entry: catalog.CatalogEntry) -> dict[str, Any]:
    return {name: value for name, value in (entry.schema or {}).items() if name != "$schema"}


def _component(name: str) -> str:
    """Return the name of a type's schema: JobAssigned for job.assigned."""
    return "".join(part.capitalize() for part in name.replace(".", "_").split("_"))


class WebhooksView(SchemaView):
    """Serve the document of webhooks, which is the same for everyone."""

    _lock = threading.Lock()
    _schema: dict[str, Any] | None = None
    _documents: dict[str, tuple[bytes, str]] = {}

    @classmethod
    def _generate(cls) -> dict[str, Any]:
        return build_document()
