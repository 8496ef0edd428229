"""A user's own notifications go; those that tell of a customer lose what told who it was."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from dispatch.core import personal
from dispatch.core.personal import Part, Person
from dispatch.jobs import personal as jobs
from notifications.models import Alert, Claim, Notification, Preference


def _own(person: Person, model: Any) -> Any:
    rows = model.objects.of(person.organization_id)
    return rows.filter(user_id=person.user_id) if person.user_id else rows.none()


def _about(person: Person, model: Any) -> Any:
    """Of their jobs; asked before these lose what finds them."""
    ids = next(trace.ids for trace in jobs.traces(person) if trace.subject_type == "job")
    found = Q(subject_type="job", subject_id__in=ids)
    for word in person.words:
        found |= Q(body__icontains=word) | Q(title__icontains=word)
    return model.objects.of(person.organization_id).filter(found)


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    return {
        "notifications": personal.as_rows(_own(person, Notification)),
        "preferences": personal.as_rows(_own(person, Preference)),
        "claims": personal.as_rows(_own(person, Claim)),
        "alerts": personal.as_rows(_about(person, Alert), "id", "title", "body", "created_at"),
    }


def erase(person: Person) -> int:
    count = sum(_about(person, model).update(body="") for model in (Notification, Alert))
    return count + sum(_own(person, model).delete()[0] for model in (Notification, Preference, Claim))


PART = Part(rows, erase)
