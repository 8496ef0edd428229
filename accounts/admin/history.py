"""Show a row's history in the admin: its events and the saved forms. Log changes of rows without organization."""

from __future__ import annotations

import json
import re
from typing import Any

from django.db import models
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils import formats, timezone
from django.utils.dateparse import parse_datetime
from django.utils.text import capfirst
from django.utils.translation import gettext

from accounts import installation_log
from accounts.admin.tenant_scope import organization_id_of
from accounts.models import Organization
from dispatch.core import languages
from dispatch.core.labels import label, translate_label
from dispatch.core.models import Event
from dispatch.core.phone_numbers import format_national
from dispatch.core.stored_texts import translate_stored

MAX_EVENTS = 200
# Left out of an event's details, as are ids: the page shows them elsewhere.
_OMITTED_FIELDS = frozenset({"name"})
# Data that lists names of the row's fields.
NAMES_OF_FIELDS = frozenset({"fields", "changed"})
# Names in the data of events that are no fields.
WORDS = (
    label("fields"), label("changes"), label("service"), label("note"), label("reason"), label("error"),
    label("until"), label("count"), label("by"),
    label("via"), label("role"), label("description"), label("outage"), label("code"), label("message"),
    label("number"), label("days"), label("what"), label("status"), label("overlap"), label("host"),
    label("email"), label("phone"), label("open jobs"), label("jobs"), label("action"), label("source"),
    label("purpose"),
)  # fmt: skip
_PHONE = re.compile(r"\+[1-9]\d{6,14}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


class EventHistoryMixin:
    """Mixin of a ModelAdmin that shows the actions of people, API keys and Dispatch, newest first.

    `subject` is the event log's name for such a row; the model's name by default.
    """

    subject = ""
    object_history_template = "admin/owned_history.html"

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        answer = super().history_view(request, object_id, extra_context)  # type: ignore[misc]
        if isinstance(answer, TemplateResponse) and answer.context_data and "object" in answer.context_data:
            row = answer.context_data["object"]
            # Events about a row of no organization are the installation's.
            is_shown = organization_id_of(row) is not None or request.user.is_superuser
            events = self._events_of(row) if is_shown else []
            answer.context_data |= {"events": events[:MAX_EVENTS], "more_events": len(events) > MAX_EVENTS}
            for entry in answer.context_data["action_list"]:
                entry.change_message = translate_entry(entry.change_message, self.model)  # type: ignore[attr-defined]
        return answer

    # --- the installation's audit log (Django calls these with each change that the admin's log records) ---------
    def log_addition(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        if organization_id_of(obj) is None or isinstance(obj, Organization):
            installation_log.record_change(obj, "added", message, actor=request.actor)
        with languages.override(languages.DEFAULT):  # the name of the row is stored
            return super().log_addition(request, obj, message)  # type: ignore[misc]

    def log_change(self, request: HttpRequest, obj: models.Model, message: Any) -> Any:
        if organization_id_of(obj) is None:
            installation_log.record_change(obj, "changed", message, actor=request.actor)
        with languages.override(languages.DEFAULT):
            return super().log_change(request, obj, message)  # type: ignore[misc]

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        for row in queryset:
            if organization_id_of(row) is None:
                installation_log.record_change(row, "deleted", [], actor=request.actor)
        with languages.override(languages.DEFAULT):
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
                "details": describe_data(self.data_of(event), type(row)),
            }
            for event in rows.order_by("-id")[: MAX_EVENTS + 1]
        ]

    def data_of(self, event: Event) -> dict[str, Any]:
        """Return the data of an event to show. Override it to show names instead of codes."""
        data: dict[str, Any] = event.data
        return data


def describe_kind(event: Event) -> str:
    """Return the verb of an event in words, such as "auto paused"."""
    return translate_label(event.kind.partition(".")[2].replace("_", " "), "event")


def describe_data(data: dict[str, Any], model: type[models.Model]) -> str:
    """Return an event's data as one line, such as "fields: name, latitude; note: she asked for it".

    `model`: that of the row, whose field labels and choices name what the data contains.
    """
    parts = []
    for name, value in data.items():
        if name in _OMITTED_FIELDS or name.endswith(("_id", "_ids")) or value in (None, "", [], {}):
            continue
        parts.append(f"{name_of(name, model)}: {format_value(value, model, name)[:200]}")
    return "; ".join(parts)


def name_of(name: str, model: type[models.Model]) -> str:
    """Return the label of the model's field with this name, or the name in words."""
    field: Any = _fields_of(model).get(name)
    return str(field.verbose_name) if field else translate_label(name.replace("_", " "), "event")


def format_value(value: Any, model: type[models.Model], name: str = "") -> str:
    """Return a JSON value as people read it: choices by their labels, phones nationally, and yes or no."""
    if isinstance(value, dict):
        return ", ".join(f"{name_of(key, model)} {format_value(item, model, key)}" for key, item in value.items())
    if isinstance(value, list):
        if name in NAMES_OF_FIELDS:
            return ", ".join(name_of(str(item), model) for item in value)
        return ", ".join(format_value(item, model, name) for item in value)
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if value is None:
        return gettext("none")
    field: Any = _fields_of(model).get(name)
    if field is not None and field.choices:
        return str(dict(field.flatchoices).get(value, value))
    text = str(value)
    if _PHONE.fullmatch(text):
        return format_national(text)
    if _MOMENT.match(text) and (moment := parse_datetime(text)) is not None:
        return formats.date_format(timezone.localtime(moment), "DATETIME_FORMAT")
    return translate_stored(text)


def translate_entry(message: str, model: type[models.Model]) -> str:
    """Return the message of an entry of the admin's log with the labels of the fields in the active language."""
    try:
        parts = json.loads(message) if message[:1] == "[" else None
    except json.JSONDecodeError:
        parts = None
    if parts is None:
        return translate_stored(message)
    for values in (value for part in parts for value in part.values()):
        if "fields" in values:
            values["fields"] = [_translate_field(text, model) for text in values["fields"]]
        if "name" in values:
            values["name"] = translate_label(values["name"])
    return json.dumps(parts)


def _translate_field(text: str, model: type[models.Model]) -> str:
    """Translate the label of a field, which forms begin with a capital."""
    context = model._meta.label_lower
    own = translate_label(text, context)
    return own if own != text else str(capfirst(translate_label(text[:1].lower() + text[1:], context)))


def _fields_of(model: type[models.Model]) -> dict[str, Any]:
    return {field.name: field for field in model._meta.fields}
