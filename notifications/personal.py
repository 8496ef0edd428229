"""Erase personal data: delete the user's own notifications and redact those that identify another person.

These are notifications and alerts about a customer's jobs or a technician, and the texts that carried them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from django.db.models import Q

from accounts.models import User
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data, scrubbing
from dispatch.core.privacy.personal_data import DataSubject, PersonalDataHandler
from dispatch.jobs import personal as jobs
from dispatch.technicians import personal as technicians
from dispatch.telephony.models import Text
from notifications.models import (
    Alert,
    AlertChannel,
    Claim,
    Delivery,
    Notification,
    PhoneConfirmation,
    Preference,
    PushSubscription,
)


def _own(person: DataSubject, model: Any) -> Any:
    rows = model.objects.of(person.organization_id)
    return rows.filter(user_id=person.user_id) if person.user_id else rows.none()


def _browsers(person: DataSubject) -> Any:
    """Select the browsers of the user or technician that get push notifications."""
    rows = PushSubscription.objects.of(person.organization_id)
    if person.technician_id:
        return rows.filter(technician_id=person.technician_id)
    return rows.filter(user_id=person.user_id) if person.user_id else rows.none()


def _about(person: DataSubject, model: Any) -> Any:
    """Select rows about the person and their jobs. Must run before the jobs lose the data that identifies them."""
    ids = next(trace.ids for trace in jobs.traces(person) if trace.subject_type == "job")
    matches = Q(subject_type="job", subject_id__in=ids)
    words = list(person.words)
    for technician in technicians.traces(person):
        matches |= Q(subject_type="technician", subject_id__in=technician.ids)
        words += [name for name in technician.names if len(name) > 1]
    for word in words:
        matches |= Q(body__icontains=word) | Q(title__icontains=word)
    return model.objects.of(person.organization_id).filter(matches)


def _texts(person: DataSubject) -> Any:
    """Select the texts that carried notifications about the person or their jobs, or went to the user."""
    about = Q(notification__in=_about(person, Notification).values("pk"))
    about |= Q(notification__in=_own(person, Notification).values("pk"))
    deliveries = Delivery.objects.of(person.organization_id).filter(about)
    return Text.objects.of(person.organization_id).filter(
        purpose="alert", subject_id__in=deliveries.values("pk"), direction=Text.Direction.OUT
    )


def blocked_by(person: DataSubject) -> list[str]:
    """Return why the person's data cannot be erased now; empty if it can."""
    going = _texts(person).filter(ended_at=None).exists()
    return ["A text about them is in progress. Try again in a few minutes."] if going else []


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the user's notifications, preferences and claims, and the alerts about a customer, for the export."""
    return {
        "notifications": personal_data.as_rows(_own(person, Notification)),
        "preferences": personal_data.as_rows(_own(person, Preference)),
        "claims": personal_data.as_rows(_own(person, Claim)),
        "phone_confirmations": personal_data.as_rows(
            _own(person, PhoneConfirmation), "id", "phone", "confirmed_at", "accepted_until"
        ),
        "alert_channels": personal_data.as_rows(_own(person, AlertChannel), "id", "kind", "name", "address"),
        "push_subscriptions": personal_data.as_rows(_browsers(person), "id", "name", "host", "created_at"),
        "alerts": personal_data.as_rows(_about(person, Alert), "id", "title", "body", "created_at"),
        "texts_of_alerts": personal_data.as_rows(_texts(person), "id", "body", "created_at"),
    }


def erase(person: DataSubject) -> int:
    """Delete the user's rows, redact the rows about a customer, and return the number of rows changed."""
    count = _texts(person).update(body="")
    count += sum(_redact(person, model) for model in (Notification, Alert))
    count += _redact_actor(person)
    own = (Notification, Preference, Claim, PhoneConfirmation)
    count += sum(_own(person, model).delete()[0] for model in own)
    count += int(_browsers(person).defer("endpoint", "keys").delete()[0])
    return count + int(_own(person, AlertChannel).defer("config").delete()[0])


def _redact(person: DataSubject, model: Any) -> int:
    """Clear the bodies, and remove the person's values from the titles."""
    names = jobs.identifiers(person).names | technicians.identifiers(person).names
    pattern = scrubbing.word_pattern(person.words, {name for name in names if len(name) > 1})
    return _substitute(_about(person, model), pattern, "title", clears=["body"])


def _redact_actor(person: DataSubject) -> int:
    """Remove the member's name from what colleagues were notified of: what the member did, and what they ended."""
    user = User.objects.filter(pk=person.user_id).only("name").first() if person.user_id else None
    if user is None or not user.name:
        return 0
    pattern = scrubbing.word_pattern((), {user.name})
    events = Event.objects.filter(
        organization_id=person.organization_id, actor_type="user", actor_id=user.pk
    ).values("pk")
    ended = Q(settled_how__istartswith=f"{user.name} ")
    deliveries = Delivery.objects.of(person.organization_id).filter(notification__event_id__in=events)
    texts = Text.objects.of(person.organization_id).filter(purpose="alert", subject_id__in=deliveries.values("pk"))
    count = _substitute(texts, pattern, "body")
    for model in (Notification, Alert):
        rows = model.objects.of(person.organization_id).filter(Q(event_id__in=events) | ended)
        count += _substitute(rows, pattern, "title", "settled_how")
    return count


def _substitute(rows: Any, pattern: re.Pattern[str], *fields: str, clears: Sequence[str] = ()) -> int:
    """Replace every match in these fields, within their lengths, and clear others. Return the number of rows."""
    limits = {field: rows.model._meta.get_field(field).max_length for field in fields}
    changed: list[Any] = []
    for row in rows.only(*fields, *clears):
        before = {field: getattr(row, field) for field in (*fields, *clears)}
        after = {field: pattern.sub(personal_data.ERASED, before[field])[: limits[field]] for field in fields}
        after |= dict.fromkeys(clears, "")
        if after != before:
            for field, text in after.items():
                setattr(row, field, text)
            changed.append(row)
    rows.model.objects.bulk_update(changed, [*fields, *clears], batch_size=personal_data.BATCH)
    return len(changed)


PART = PersonalDataHandler(rows, erase, blocked_by=blocked_by)
