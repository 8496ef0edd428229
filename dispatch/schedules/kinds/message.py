"""Send a message to an endpoint, through the outbox."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rest_framework.exceptions import APIException, ValidationError

from accounts.models import ApiKey, Organization
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.outbox.api.messages import SendSerializer
from dispatch.outbox.models import Message
from dispatch.outbox.services.intake import NewMessage, accept_messages
from dispatch.schedules.kinds.base import (
    Assignment,
    Kind,
    LeaseCheck,
    Outcome,
    RequestStandIn,
    attempt,
    describe_errors,
    failed,
    is_undecided,
)
from dispatch.schedules.rules.outcomes import REFUSED, SUCCEEDED

# Payload fields that are not allowed: the schedule sets the time, and the run sets the idempotency key.
_RESERVED_FIELDS = ("idempotency_key", "scheduled_for", "expires_at")


class MessageKind(Kind):
    """Send messages. The payload is one message as in `POST /api/v1/messages/`.

    A worker accepts the messages of its batch together, in one transaction per organization. The outbox keeps one
    message per idempotency key.
    """

    name = "message"
    label = mark("Send a message to an endpoint")
    scope = ApiKey.Scope.MESSAGES

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        self._message(organization, payload)

    def summary(self, payload: Mapping[str, Any]) -> str:
        to = payload.get("endpoint") or payload.get("target_url") or ""
        return _("{type} to {endpoint}").format(type=payload.get("type", ""), endpoint=to)

    def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome] | None]:
        organizations = Organization.objects.in_bulk({assignment.organization_id for assignment in given})
        groups: dict[int, list[tuple[Assignment, NewMessage]]] = defaultdict(list)
        for assignment in given:
            if not keep(assignment):
                continue
            try:
                made = self._message(organizations[assignment.organization_id], assignment.payload)
            except APIException as error:
                yield assignment, Outcome(REFUSED, error=describe_errors(error))
                continue
            except Exception as error:
                if is_undecided(error):
                    raise
                yield assignment, failed(error)
                continue
            made = replace(made, idempotency_key=assignment.idempotency_key, actor=assignment.actor)
            groups[assignment.organization_id].append((assignment, made))
        for organization_id, group in groups.items():
            yield from self._accept(organization_id, group)

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        keys = {assignment.idempotency_key: assignment.run_id for assignment in given}
        organizations = {assignment.organization_id for assignment in given}
        messages = Message.objects.filter(organization_id__in=organizations, idempotency_key__in=list(keys))
        return {keys[str(key)]: {"message": pk} for pk, key in messages.values_list("pk", "idempotency_key")}

    def _accept(
        self, organization_id: int, group: Sequence[tuple[Assignment, NewMessage]]
    ) -> Iterator[tuple[Assignment, Outcome]]:
        try:
            accepted = accept_messages(organization_id, [message for _, message in group])
        except Exception as error:
            if is_undecided(error):
                raise
            # one of the messages failed: accept each separately
            for assignment, message in group:
                yield assignment, attempt(lambda m=message, a=assignment: self._accept_single(a, m))  # type: ignore[misc]
            return
        for (assignment, _message), made in zip(group, accepted, strict=True):
            yield assignment, Outcome(SUCCEEDED, {"message": made.id})

    def _accept_single(self, assignment: Assignment, message: NewMessage) -> dict[str, Any]:
        return {"message": accept_messages(assignment.organization_id, [message])[0].id}

    def _message(self, organization: Organization, payload: dict[str, Any]) -> NewMessage:
        if taken := [name for name in _RESERVED_FIELDS if name in payload]:
            raise ValidationError(dict.fromkeys(taken, _("Set by the schedule.")))
        form = SendSerializer(data=payload, context={"request": RequestStandIn(organization)})
        form.is_valid(raise_exception=True)
        return form.to_message(form.validated_data)


KIND = MessageKind()
