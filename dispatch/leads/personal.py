"""What is kept of a lead. Numbers on the do-not-call list stay there: that is what they asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from dispatch.core import personal
from dispatch.core.personal import Part, Person, Trace
from dispatch.leads.models import Lead


def _of(person: Person) -> Any:
    found = Q(pk__in=[])
    if person.phone:
        found |= Q(phone=person.phone)
    if person.email:
        found |= Q(data__icontains=person.email)
    return Lead.objects.of(person.organization_id).filter(found)


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    return {"leads": personal.as_rows(_of(person))}


def blocked_by(person: Person) -> Iterable[str]:
    for pk in _of(person).exclude(status=Lead.Status.FINISHED).order_by("pk").values_list("pk", flat=True):
        yield f"Lead {pk} is to be called: cancel it first."


def traces(person: Person) -> list[Trace]:
    return [Trace("lead", list(_of(person).values_list("pk", flat=True)))]


def erase(person: Person) -> int:
    return int(_of(person).update(phone="", lat=None, lng=None, external_id="", data={}))


PART = Part(rows, erase, traces, blocked_by)
