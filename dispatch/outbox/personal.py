"""List and erase messages that contain a person's phone number or email address.

Erasing clears the payload and the response bodies of messages that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """Yield why erasure must wait: a sentence for each of the first messages that have not ended."""
    for pk in _matching(person).filter(ended_at=None).order_by("pk").values_list("pk", flat=True)[:MAX_REASONS]:
        yield _reason(pk)


def _reason(pk: int) -> str:
    return f"Message {pk} is not delivered yet. Wait until it ends, or cancel it."


def erase(person: DataSubject) -> int:
    """Clear payloads, errors and response bodies of the person's messages; return how many messages changed.

    Raises StillNeeded if a message was replayed or retried since `blocked_by` was asked.
    """
    locked = _matching(person).select_for_update(no_key=True).order_by("pk")
    ends = dict(locked.values_list("pk", "ended_at"))
    if opened := [pk for pk, ended_at in ends.items() if ended_at is None]:
        raise StillNeeded(" ".join(_reason(pk) for pk in opened[:MAX_REASONS]))
    ids = list(ends)
    Attempt.objects.filter(message_id__in=ids).update(answer="", error="")
    return Message.objects.filter(pk__in=ids).update(payload="{}", last_error="", erased_at=clock.now())


PART = PersonalDataHandler(rows, erase, blocked_by=blocked_by)
