"""What is kept of a technician."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dispatch.core import personal
from dispatch.core.personal import Part, Person, Trace
from dispatch.technicians.models import Shift, Technician


def _of(person: Person) -> Any:
    """By id: whoever has the phone of a customer is not meant by it."""
    rows = Technician.objects.of(person.organization_id)
    return rows.filter(pk=person.technician_id) if person.technician_id is not None else rows.none()


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    ids = list(_of(person).values_list("pk", flat=True))
    shifts = Shift.objects.filter(technician_id__in=ids)
    return {"technicians": personal.as_rows(_of(person)), "shifts": personal.as_rows(shifts)}


def blocked_by(person: Person) -> Iterable[str]:
    for row in _of(person):
        if row.open_jobs or row.live_offer_id:
            yield f"Technician {row.pk} has open jobs or is being offered one: end those first."


def traces(person: Person) -> list[Trace]:
    return [Trace("technician", [row.pk], [row.name]) for row in _of(person)]


def erase(person: Person) -> int:
    count = 0
    for row in _of(person).select_for_update(no_key=True):
        row.shifts.all().delete()
        row.name, row.phone, row.lat, row.lng = f"Erased technician {row.pk}", "", 0.0, 0.0
        row.is_active, row.on_duty, row.time_zone = False, False, ""
        row.link_version += 1  # links to their page are void
        row.save()
        count += 1
    return count


PART = Part(rows, erase, traces, blocked_by)
