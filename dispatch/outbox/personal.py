"""List and erase messages that contain a person's phone number or email address.

Erasing clears the payload and the response bodies of messages that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Q

from dispatch.core import clock
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, PersonalDataHandler, StillNeeded
from dispatch.outbox.models import Attempt, Message

MAX_REASONS = 20


def _matching(person: DataSubject) -> Any:
    mentions = Q(pk__in=[])
    for word in person.words:
        mentions |= Q(payload__icontains=word)
    return Message.objects.of(person.organization_id).filter(mentions)


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the messages that mention the person, for export."""
    return {"messages": personal_data.as_rows(_matching(person), "id", "type", "payload", "status", "created_at")}


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Yield why erasure must wait: a sentence for each of the first messages that have not ended.

    A canceled message whose attempt is in progress has not ended either: its response is stored later.
    """
    opened = _matching(person).filter(Q(ended_at=None) | Q(in_flight=True)).order_by("pk")
    for pk, ended_at in opened.values_list("pk", "ended_at")[:MAX_REASONS]:
        yield _reason(pk, ended_at)


def _reason(pk: int, ended_at: datetime | None) -> str:
    if ended_at is None:
        return f"Message {pk} is not delivered yet. Wait until it ends, or cancel it."
    return f"Message {pk} was canceled, but its attempt is still in progress. Wait until it ends."


def erase(person: DataSubject) -> int:
    """Clear payloads, errors and response bodies of the person's messages; return how many messages changed.

    Raises StillNeeded if a message was replayed or retried since `blocked_by` was asked.
    """
    locked = _matching(person).select_for_update(no_key=True).order_by("pk")
    found = list(locked.values_list("pk", "ended_at", "in_flight"))
    if opened := [(pk, ended_at) for pk, ended_at, in_flight in found if ended_at is None or in_flight]:
        raise StillNeeded(" ".join(_reason(*message) for message in opened[:MAX_REASONS]))
    ids = [pk for pk, _, _ in found]
    Attempt.objects.filter(message_id__in=ids).update(answer="", error="")
    return Message.objects.filter(pk__in=ids).update(payload="{}", last_error="", erased_at=clock.now())


PART = PersonalDataHandler(rows, erase, blocked_by=blocked_by)
