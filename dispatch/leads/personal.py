"""Handle the personal data of leads.

Numbers stay on the do-not-call list, as the person asked. Records of consent stay without the number, which is
replaced by its hash: the organization must be able to prove that it was allowed to call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import (
    DataSubject,
    EventReference,
    Identifiers,
    PersonalDataHandler,
)
from dispatch.leads.models import Consent, Lead
from dispatch.leads.services import consents


def _leads_of(person: DataSubject) -> Any:
    matches = Q(pk__in=[])
    if person.phone:
        matches |= Q(phone=person.phone)
    if person.email:
        matches |= Q(data__icontains=person.email)
    return Lead.objects.of(person.organization_id).filter(matches)


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the person's leads and consents for an export."""
    return {
        "leads": personal_data.as_rows(_leads_of(person)),
        "consents": personal_data.as_rows(_consents_of(person)),
    }


def _consents_of(person: DataSubject) -> Any:
    if not person.phone:
        return Consent.objects.none()
    return consents.consents_of(person.organization_id, person.phone)


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Return why the person's data cannot be erased now; empty if it can."""
    for pk in _leads_of(person).exclude(status=Lead.Status.FINISHED).order_by("pk").values_list("pk", flat=True):
        yield f"Lead {pk} is waiting to be called. Cancel it first."


def traces(person: DataSubject) -> list[EventReference]:
    """Return the leads whose events mention the person."""
    return [
        EventReference("lead", list(_leads_of(person).values_list("pk", flat=True))),
        EventReference("consent", list(_consents_of(person).values_list("pk", flat=True))),
    ]


def identifiers(person: DataSubject) -> Identifiers:
    """Return the phones of leads whose data has the person's email address."""
    if not person.email:
        return Identifiers()
    phones = _leads_of(person).values_list("phone", flat=True)
    return Identifiers(phones=frozenset(str(phone) for phone in phones if phone))


def erase(person: DataSubject) -> int:
    """Erase the person's data from their leads, and return how many rows changed."""
    changed = int(_leads_of(person).update(phone="", lat=None, lng=None, external_id="", data={}, notes=""))
    return changed + (consents.erase(person.organization_id, person.phone) if person.phone else 0)


PART = PersonalDataHandler(rows, erase, traces, blocked_by, identifiers, keeps=("leads.DoNotCall",))
