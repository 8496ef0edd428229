"""A message to an endpoint, through the outbox."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import DatabaseError
from rest_framework.exceptions import APIException, ValidationError

from accounts.models import ApiKey, Organization
from dispatch.outbox.api.messages import SendSerializer
from dispatch.outbox.models import Message
from dispatch.outbox.services.intake import NewMessage, accept
from dispatch.schedules.kinds.base import Asker, Assignment, Keep, Kind, Outcome, attempt, words
from dispatch.schedules.rules.outcomes import REFUSED, SUCCEEDED

# The schedule itself says when, and the run says what is the same.
_OF_THE_SCHEDULE = ("idempotency_key", "scheduled_for", "expires_at")


class MessageKind(Kind):
    """The payload is one message of `POST /api/v1/messages/`. Those of a message's worker are accepted together,
    in one transaction per organization; the outbox keeps one message per idempotency key."""

    name = "message"
    label = "Send a message to an endpoint"
    scope = ApiKey.Scope.MESSAGES

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        self._message(organization, payload)

    def summary(self, payload: Mapping[str, Any]) -> str:
        to = payload.get("endpoint") or payload.get("target_url") or ""
        return f"{payload.get('type', '')} to {to}"

    def work(self, given: Sequence[Assignment], keep: Keep) -> Iterator[tuple[Assignment, Outcome]]:
        organizations = Organization.objects.in_bulk({one.organization_id for one in given})
        groups: dict[int, list[tuple[Assignment, NewMessage]]] = defaultdict(list)
        for one in given:
            if not keep(one):
                continue
            try:
                made = self._message(organizations[one.organization_id], one.payload)
            except APIException as error:
                yield one, Outcome(REFUSED, error=words(error))
                continue
            groups[one.organization_id].append((one, replace(made, idempotency_key=one.idempotency_key)))
        for organization_id, group in groups.items():
            yield from self._accept(organization_id, group)

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        keys = {one.idempotency_key: one.run_id for one in given}
        organizations = {one.organization_id for one in given}
        found = Message.objects.filter(organization_id__in=organizations, idempotency_key__in=list(keys))
        return {keys[str(key)]: {"message": pk} for pk, key in found.values_list("pk", "idempotency_key")}

    def _accept(
        self, organization_id: int, group: Sequence[tuple[Assignment, NewMessage]]
    ) -> Iterator[tuple[Assignment, Outcome]]:
        try:
            accepted = accept(organization_id, [message for _, message in group], actor=group[0][0].actor)
        except DatabaseError:
            raise
        except Exception:  # one of them: each by itself
            for one, message in group:
                yield one, attempt(lambda message=message, one=one: self._alone(one, message))  # type: ignore[misc]
            return
        for (one, _), made in zip(group, accepted, strict=True):
            yield one, Outcome(SUCCEEDED, {"message": made.id})

    def _alone(self, one: Assignment, message: NewMessage) -> dict[str, Any]:
        return {"message": accept(one.organization_id, [message], actor=one.actor)[0].id}

    def _message(self, organization: Organization, payload: dict[str, Any]) -> NewMessage:
        if taken := [name for name in _OF_THE_SCHEDULE if name in payload]:
            raise ValidationError(dict.fromkeys(taken, "The schedule says this."))
        form = SendSerializer(data=payload, context={"request": Asker(organization)})
        form.is_valid(raise_exception=True)
        return form.to_message(form.validated_data)


KIND = MessageKind()
