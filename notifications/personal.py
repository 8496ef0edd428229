"""Erase personal data: delete the user's own notifications and redact those that identify a customer."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, PersonalDataHandler
from dispatch.jobs import personal as jobs
from notifications.models import Alert, Claim, Notification, Preference


def _own(person: DataSubject, model: Any) -> Any:
    rows = model.objects.of(person.organization_id)
    return rows.filter(user_id=person.user_id) if person.user_id else rows.none()


def _about(person: DataSubject, model: Any) -> Any:
    """Select rows about the person's jobs. Must run before the jobs lose the data that identifies them."""
    ids = next(trace.ids for trace in jobs.traces(person) if trace.subject_type == "job")
    matches = Q(subject_type="job", subject_id__in=ids)
    for word in person.words:
        matches |= Q(body__icontains=word) | Q(title__icontains=word)
    return model.objects.of(person.organization_id).filter(matches)


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the user's notifications, preferences and claims, and the alerts about a customer, for the export."""
    return {
        "notifications": personal_data.as_rows(_own(person, Notification)),
        "preferences": personal_data.as_rows(_own(person, Preference)),
        "claims": personal_data.as_rows(_own(person, Claim)),
        "alerts": personal_data.as_rows(_about(person, Alert), "id", "title", "body", "created_at"),
    }


def erase(person: DataSubject) -> int:
    """Delete the user's rows, redact the rows about a customer, and return the number of rows changed."""
    count = sum(_about(person, model).update(body="") for model in (Notification, Alert))
    return count + sum(_own(person, model).delete()[0] for model in (Notification, Preference, Claim))


PART = PersonalDataHandler(rows, erase)
