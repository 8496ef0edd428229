"""Schedules whose payload names a person, and what their runs answered: kept while they are to run, emptied when
they have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import phonenumbers
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.fields.json import KeyTextTransform

from dispatch.core import personal
from dispatch.core.personal import Part, Person, Trace
from dispatch.schedules.models import Run, RunReport, Schedule

# Under which names payloads have a phone, in whatever way it was written.
_PHONES = ("customer_phone", "phone")
_NAMES = ("customer_name", "address")
_OPEN = (Schedule.Status.ACTIVE, Schedule.Status.PAUSED)


def _of(person: Person) -> Any:
    schedules = Schedule.objects.of(person.organization_id)
    found = Q(pk__in=[])
    for word in person.words:
        found |= Q(payload__icontains=word)
    if person.phone:
        spellings = _spellings(person.phone)
        for name in _PHONES:
            digits = Func(
                KeyTextTransform(name, "payload"), Value(r"\D"), Value(""), Value("g"),
                function="regexp_replace", output_field=TextField(),
            )  # fmt: skip
            schedules = schedules.annotate(**{f"{name}_digits": digits})
            found |= Q(**{f"{name}_digits__in": spellings})
    return schedules.filter(found)


def _spellings(phone: str) -> list[str]:
    """The digits by which a number may have been typed: at home, and from abroad."""
    parsed = phonenumbers.parse(phone)
    national, whole = str(parsed.national_number), f"{parsed.country_code}{parsed.national_number}"
    return [national, f"0{national}", whole, f"00{whole}", f"011{whole}"]


def _ids(person: Person) -> list[int]:
    return list(_of(person).values_list("pk", flat=True))


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    runs = Run.objects.filter(schedule_id__in=_ids(person))
    return {
        "schedules": personal.as_rows(_of(person), "id", "name", "kind", "payload", "status", "created_at"),
        "runs": personal.as_rows(runs, "id", "schedule", "trigger_at", "status", "result", "error"),
    }


def blocked_by(person: Person) -> Iterable[str]:
    for pk in _of(person).filter(status__in=_OPEN).order_by("pk").values_list("pk", flat=True)[:20]:
        yield f"Schedule {pk} is still to run: delete it first."
    going = Run.objects.filter(schedule_id__in=_ids(person), ended_at=None).exclude(schedule__status__in=_OPEN)
    for pk in going.order_by("pk").values_list("pk", flat=True)[:20]:
        yield f"Run {pk} has not ended: let it end, or cancel it."


def traces(person: Person) -> list[Trace]:
    """A schedule is often called by its customer's name, and a receiver may answer with it."""
    ids = _ids(person)
    names: set[str] = set()
    for name, payload in Schedule.objects.filter(pk__in=ids).values_list("name", "payload"):
        names |= {name, *(str(payload[key]) for key in _NAMES if payload.get(key))}
    runs = list(Run.objects.filter(schedule_id__in=ids).values_list("pk", flat=True))
    return [Trace("schedule", ids, sorted(names, key=len, reverse=True)), Trace("run", runs)]


def erase(person: Person) -> int:
    ids = _ids(person)
    RunReport.objects.filter(run__schedule_id__in=ids).update(result=None, error="")
    Run.objects.filter(schedule_id__in=ids).update(result=None, error="")
    return int(
        Schedule.objects.filter(pk__in=ids).update(
            name=personal.ERASED, payload={}, headers={}, version=F("version") + 1
        )
    )


PART = Part(rows, erase, traces, blocked_by)
