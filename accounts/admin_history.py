"""What happened to a row, on the admin's page of its history: the event log beside the forms that were saved."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse

from accounts.admin_scope import organization_id_of
from dispatch.core.models import Event

MOST = 200
# Left out of an event's details, as are ids: the page says it already.
_SAID = frozenset({"name"})


class TellsEvents:
    """For a ModelAdmin: the history tells what people, keys and Dispatch itself did, newest first.

    `subject` is what the event log calls such a row; the model's name unless given."""

    subject = ""
    object_history_template = "admin/owned_history.html"

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        answer = super().history_view(request, object_id, extra_context)  # type: ignore[misc]
        if isinstance(answer, TemplateResponse) and answer.context_data and "object" in answer.context_data:
            found = self._events_of(answer.context_data["object"])
            answer.context_data |= {"events": found[:MOST], "more_events": len(found) > MOST}
        return answer

    def _events_of(self, row: Any) -> list[dict[str, Any]]:
        subject = self.subject or row._meta.model_name
        rows = Event.objects.filter(
            subject_type=subject, subject_id=row.pk, organization_id=organization_id_of(row) or 0
        )
        return [
            {"at": one.at, "actor": one.actor_label, "did": did(one), "details": details(one.data)}
            for one in rows.order_by("-id")[: MOST + 1]
        ]


def did(event: Event) -> str:
    """The verb of an event in words: "auto paused"."""
    return event.kind.partition(".")[2].replace("_", " ")


def details(data: dict[str, Any]) -> str:
    """An event's data as a line: "fields: name, lat; note: she asked for it"."""
    parts = []
    for name, value in data.items():
        if name in _SAID or name.endswith(("_id", "_ids")) or value in (None, "", [], {}):
            continue
        parts.append(f"{name.replace('_', ' ')}: {_words(value)[:200]}")
    return "; ".join(parts)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_words(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_words(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
