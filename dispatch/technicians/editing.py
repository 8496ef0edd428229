"""The transactions by which people edit technicians: services of the API and the admin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import time
from typing import Any

from django.db import transaction

from accounts.models import Organization
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.technicians import services
from dispatch.technicians.models import Shift, Skill, Technician

ShiftTimes = tuple[int, time, time]


@transaction.atomic
def create_technician(
    organization: Organization,
    fields: dict[str, Any],
    *,
    skills: Iterable[Skill] = (),
    shifts: Sequence[ShiftTimes] = (),
) -> Technician:
    """A new technician of `organization`; `fields` are those of the model, validated."""
    technician = Technician.objects.create(organization=organization, **fields)
    technician.skills.set(skills)
    if shifts:
        set_shifts(technician, shifts)
    technician.refresh_from_db()
    return technician


@transaction.atomic
def change_technician(
    technician_id: int,
    changes: dict[str, Any],
    *,
    skills: Iterable[Skill] | None = None,
    shifts: Sequence[ShiftTimes] | None = None,
    actor: Actor,
) -> Technician:
    """Changes fields by name (validated), and replaces skills and shifts where given. A change of duty has its
    Event. Raises Technician.DoesNotExist."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    changes = dict(changes)
    on_duty = changes.pop("on_duty", None)
    if {"lat", "lng"} & changes.keys():
        changes["position_at"] = clock.now()
    if "phone" in changes and str(changes["phone"]) != str(technician.phone):
        changes["link_version"] = technician.link_version + 1  # whoever has the old phone has the old link
    if changes:
        for name, value in changes.items():
            setattr(technician, name, value)
        technician.save(update_fields=list(changes))
    if skills is not None:
        technician.skills.set(skills)
    if shifts is not None:
        set_shifts(technician, shifts)
    if on_duty is not None:
        set_duty(technician_id, on_duty, actor=actor)
    technician.refresh_from_db()
    return technician


@transaction.atomic
def set_duty(technician_id: int, on_duty: bool, *, actor: Actor) -> bool:
    """On or off duty, with its Event; going on duty ends an auto-pause. False when nothing changed. Raises
    Technician.DoesNotExist."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    came_back = on_duty and services.back(technician_id, actor=actor)
    if technician.on_duty == on_duty:
        return came_back
    Technician.objects.filter(pk=technician_id).update(on_duty=on_duty)
    kind = "technician.duty_on" if on_duty else "technician.duty_off"
    events.append(technician.organization_id, kind, technician_id, actor=actor, name=technician.name)
    return True


@transaction.atomic
def move(technician_id: int, lat: float, lng: float) -> Technician:
    """A new position in degrees, with its cell and the moment. Raises Technician.DoesNotExist."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    technician.lat, technician.lng, technician.position_at = lat, lng, clock.now()
    technician.save(update_fields=["lat", "lng", "position_at"])
    return technician


@transaction.atomic
def set_shifts(technician: Technician, shifts: Iterable[ShiftTimes]) -> None:
    """Replaces the shifts by these (weekday from Monday = 0, starts, ends); none = whenever on duty."""
    Technician.objects.select_for_update(no_key=True).get(pk=technician.pk)
    technician.shifts.all().delete()
    Shift.objects.bulk_create(
        Shift(
            organization_id=technician.organization_id,
            technician=technician,
            weekday=day,
            starts=starts,
            ends=ends,
        )
        for day, starts, ends in shifts
    )
    services.refresh_hours(technician.pk)


@transaction.atomic
def void_links(technician_id: int, *, actor: Actor) -> None:
    """Links to their page that were given before open nothing any more. Raises Technician.DoesNotExist."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    technician.link_version += 1
    technician.save(update_fields=["link_version"])
    kind = "technician.links_voided"
    events.append(technician.organization_id, kind, technician_id, actor=actor, name=technician.name)
