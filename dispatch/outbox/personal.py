"""Messages that carry a person's phone or e-mail: ended ones lose their payload and what was answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from dispatch.core import personal
from dispatch.core.personal import Part, Person
from dispatch.outbox.models import Attempt, Message


def _of(person: Person) -> Any:
    found = Q(pk__in=[])
    for word in person.words:
        found |= Q(payload__icontains=word)
    return Message.objects.of(person.organization_id).filter(found)


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    return {"messages": personal.as_rows(_of(person), "id", "type", "payload", "status", "created_at")}


def blocked_by(person: Person) -> Iterable[str]:
    for pk in _of(person).filter(ended_at=None).order_by("pk").values_list("pk", flat=True)[:20]:
        yield f"Message {pk} is not delivered yet: let it end, or cancel it."


def erase(person: Person) -> int:
    ids = list(_of(person).values_list("pk", flat=True))
    Attempt.objects.filter(message_id__in=ids).update(answer="", error="")
    return Message.objects.filter(pk__in=ids).update(payload="{}", last_error="")


PART = Part(rows, erase, blocked_by=blocked_by)
