"""Show a row's history in the admin: its events and the saved forms. Log changes of rows without organization."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.http import HttpRequest
from django.template.response import TemplateResponse

from accounts import installation_log
from accounts.admin.tenant_scope import organization_id_of
from accounts.models import Organization
from dispatch.core.models import Event

MAX_EVENTS = 200
# Left out of an event's details, as are ids: the page shows them elsewhere.
_OMITTED_FIELDS = frozenset({"name"})


class EventHistoryMixin:
    """Mixin of a ModelAdmin that shows the actions of people, API keys and Dispatch, newest first.

    `subject` is the event log's name for such a row; the model's name by default.
    """

    subject = ""
    object_history_template = "admin/owned_history.html"

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        answer = super().history_view(request, object_id, extra_context)  # type: ignore[misc]
        if isinstance(answer, TemplateResponse) and answer.context_data and "object" in answer.context_data:
            events = self._events_of(answer.context_data["object"])
            answer.context_data |= {"events": events[:MAX_EVENTS], "more_events": len(events) > MAX_EVENTS}
        return answer

    # --- the installation's audit log (Django calls these with each change that the admin's log records) ---------
    def log_addition(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        if organization_id_of(obj) is None or isinstance(obj, Organization):
            installation_log.record_change(obj, "added", message, actor=request.actor)
        return super().log_addition(request, obj, message)  # type: ignore[misc]

    def log_change(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        if organization_id_of(obj) is None:
            installation_log.record_change(obj, "changed", message, actor=request.actor)
        return super().log_change(request, obj, message)  # type: ignore[misc]

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for row in queryset:
            if organization_id_of(row) is None:
                installation_log.record_change(row, "deleted", [], actor=request.actor)
        return super().log_deletions(request, queryset)  # type: ignore[misc]

    def _events_of(self, row: Any) -> list[dict[str, Any]]:
        subject = self.subject or row._meta.model_name
        rows = Event.objects.filter(
            subject_type=subject, subject_id=row.pk, organization_id=organization_id_of(row) or 0
        )
        return [
            {
                "at": event.at,
                "actor": event.actor_label,
                "did": describe_kind(event),
                "details": describe_data(event.data),
            }
            for event in rows.order_by("-id")[: MAX_EVENTS + 1]
        ]


def describe_kind(event: Event) -> str:
    """Return the verb of an event in words, such as "auto paused"."""
    return event.kind.partition(".")[2].replace("_", " ")


def describe_data(data: dict[str, Any]) -> str:
    """Return an event's data as one line, such as "fields: name, lat; note: she asked for it"."""
    parts = []
    for name, value in data.items():
        if name in _OMITTED_FIELDS or name.endswith(("_id", "_ids")) or value in (None, "", [], {}):
            continue
        parts.append(f"{name.replace('_', ' ')}: {format_value(value)[:200]}")
    return "; ".join(parts)


def format_value(value: Any) -> str:
    """Return a JSON value as text: lists with commas, booleans as yes or no."""
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {format_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(format_value(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
