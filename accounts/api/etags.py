"""Detect concurrent edits with ETags and If-Match (optimistic locking).

A view set with `subject` (the word before the dot in the events of its rows) returns a row with its ETag, accepts
If-Match on PATCH and DELETE, and appends an Event when it creates, updates or destroys a row. An edit locks the
row before it is validated:

    class SkillViewSet(VersionedMixin, OrganizationViewSet, mixins.…):      # before the others
        subject = "skill"
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.shortcuts import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.stored_texts import stored_name

EDITS = ("PUT", "PATCH", "DELETE")


class StaleResource(Conflict):
    """409: the row has changed since the caller read it."""

    default_code = "stale"


def compute_etag(shown: Any) -> str:
    """Return the ETag of a representation, which must be serializable as JSON."""
    text = json.dumps(shown, sort_keys=True, cls=DjangoJSONEncoder)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


def named_etags(request: Any) -> list[str]:
    """Return the ETags of If-Match; an empty list without the header or for `*`."""
    given = request.headers.get("If-Match", "").strip()
    return [] if given in ("", "*") else [etag.strip().removeprefix("W/") for etag in given.split(",")]


class VersionedMixin:
    """Add ETags to a view set. See the module docstring. `notes_itself`: the row's services append the events."""

    subject = ""
    notes_itself = False
    accepts_if_match = True  # for the OpenAPI document

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Let an edit run in a transaction, so that it is validated and saved under the row's lock."""
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        name = str(request.method).lower()
        if request.method in EDITS and (handler := getattr(self, name, None)):
            setattr(self, name, transaction.atomic(handler))

    def get_object(self) -> Any:
        """Return the row; for an edit, as it is under its lock, and only in a version that If-Match names."""
        row = super().get_object()  # type: ignore[misc]
        request: Request = self.request  # type: ignore[attr-defined]
        if request.method not in EDITS:
            return row
        self.lock_row(row)
        row = get_object_or_404(self.get_queryset(), pk=row.pk)  # type: ignore[attr-defined]
        named = named_etags(request)
        if named and self.etag_of(row) not in named:
            raise self._stale(row)
        return row

    def lock_row(self, row: Any) -> None:
        """Lock the row until the end of the transaction. Override it to lock other rows before it."""
        get_object_or_404(type(row)._default_manager.select_for_update(no_key=True, of=("self",)), pk=row.pk)

    def etag_of(self, row: Any) -> str:
        """Return the ETag of the row as a response shows it."""
        return self._etag_of_shown(self._serializer(row).data)

    def _etag_of_shown(self, shown: dict[str, Any]) -> str:
        """Return the ETag of the editable fields, without values that change by themselves (a position)."""
        editable = [name for name, field in self._serializer().fields.items() if not field.read_only]
        return compute_etag([shown["id"], {name: shown[name] for name in editable if name in shown}])

    def _serializer(self, *row: Any) -> Any:
        return self.get_serializer_class()(*row, context=self.get_serializer_context())  # type: ignore[attr-defined]

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]
        action = getattr(self, "action", None)
        data: Any = getattr(response, "data", None)
        is_row = action in ("retrieve", "create", "update", "partial_update") and isinstance(data, dict)
        if is_row and response.status_code < 300 and "id" in data:
            response["ETag"] = self._etag_of_shown(data)  # not of the row, which may have changed meanwhile
        return response

    # --- events -----------------------------------------------------------------------------------------------
    def perform_create(self, serializer: Any) -> None:
        with transaction.atomic():
            super().perform_create(serializer)  # type: ignore[misc]
            self._append_event(serializer.instance, "added")

    def perform_update(self, serializer: Any) -> None:
        with transaction.atomic():
            super().perform_update(serializer)  # type: ignore[misc]
            self._append_event(serializer.instance, "changed", fields=sorted(serializer.validated_data))

    def perform_destroy(self, instance: Any) -> None:
        with transaction.atomic():
            self._append_event(instance, "removed")
            super().perform_destroy(instance)  # type: ignore[misc]

    def _append_event(self, row: Any, verb: str, **data: Any) -> None:
        if self.notes_itself:
            return
        actor: Actor = self.request.actor  # type: ignore[attr-defined]
        events.append(
            row.organization_id, f"{self.subject}.{verb}", row.pk, actor=actor, name=stored_name(row)[:120], **data
        )

    def _stale(self, row: Any) -> StaleResource:
        """Return the error, with who made the last change and when, if the event log has it."""
        last = Event.objects.filter(
            organization_id=row.organization_id, subject_type=self.subject, subject_id=row.pk
        ).last()
        if last is None:
            return StaleResource("The resource has changed since you read it. Fetch it again and retry.")
        actor = Actor(last.actor_type, last.actor_id, last.actor_label)
        did = last.kind.partition(".")[2].replace("_", " ")
        return StaleResource(
            by=actor, did=f"{did} it" if did in ("changed", "paused", "resumed") else did, at=last.at
        )
