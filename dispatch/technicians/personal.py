"""Personal data of technicians."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import (
    DataSubject,
    EventReference,
    Identifiers,
    PersonalDataHandler,
)
from dispatch.technicians.models import Shift, Technician


def _technicians_of(person: DataSubject) -> Any:
    """Select technicians by id only: a customer's phone number must not match a technician."""
    rows = Technician.objects.of(person.organization_id)
    return rows.filter(pk=person.technician_id) if person.technician_id is not None else rows.none()


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the technician and their shifts for the export."""
    ids = list(_technicians_of(person).values_list("pk", flat=True))
    shifts = Shift.objects.filter(technician_id__in=ids)
    technicians = personal_data.as_rows(_technicians_of(person))
    for row in technicians:
        row.pop("pin_hash", None)  # a credential
    return {"technicians": technicians, "shifts": personal_data.as_rows(shifts)}


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Yield the reason why the technician can't be erased yet: open jobs or a live offer."""
    for row in _technicians_of(person):
        if row.open_jobs or row.live_offer_id:
            yield f"Technician {row.pk} has open jobs or a live offer. End those first."


def traces(person: DataSubject) -> list[EventReference]:
    """Return the subject whose events name the technician."""
    return [EventReference("technician", [row.pk], [row.name]) for row in _technicians_of(person)]


def identifiers(person: DataSubject) -> Identifiers:
    """Return the technician's phone and name."""
    found = list(_technicians_of(person).values_list("phone", "name"))
    return Identifiers(
        frozenset(str(phone) for phone, _ in found if phone), names=frozenset(name for _, name in found)
    )


def erase(person: DataSubject) -> int:
    """Clear everything that identifies the technician, deactivate them, and return the number of rows changed."""
    count = 0
    for row in _technicians_of(person).select_for_update(no_key=True).order_by("pk"):
        row.shifts.all().delete()
        row.name, row.phone, row.lat, row.lng = f"Erased technician {row.pk}", "", 0.0, 0.0
        row.is_active, row.on_duty, row.time_zone = False, False, ""
        row.link_version += 1  # revoke links to their page
        row.pin_hash = ""
        row.hours = None  # as the deletion of the shifts has set it
        row.save()
        count += 1
    return count


PART = PersonalDataHandler(rows, erase, traces, blocked_by, identifiers, keeps=("technicians.Technician",))
