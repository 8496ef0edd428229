"""List and erase personal data in schedules: payloads that name a person, and results of their runs.

The data of a schedule can be erased once it has no runs ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import phonenumbers
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.fields.json import KeyTextTransform

from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, EventReference, PersonalDataHandler
from dispatch.schedules.models import Run, RunReport, Schedule

# Payload keys that hold a phone number, in any notation.
_PHONES = ("customer_phone", "phone")
_NAMES = ("customer_name", "address")
_OPEN = (Schedule.Status.ACTIVE, Schedule.Status.PAUSED)


def _schedules_of(person: DataSubject) -> Any:
    return _naming(person, Schedule.objects.of(person.organization_id))


def _runs_of(person: DataSubject) -> Any:
    """Return the runs of schedules that name the person, and runs whose changed payload does."""
    own = _naming(person, Run.objects.of(person.organization_id).filter(payload__isnull=False))
    ids = [*own.values_list("pk", flat=True)]
    return Run.objects.of(person.organization_id).filter(Q(schedule_id__in=_ids(person)) | Q(pk__in=ids))


def _naming(person: DataSubject, rows: Any) -> Any:
    """Return those of the rows whose payload names the person."""
    mentions = Q(pk__in=[])
    for word in person.words:
        mentions |= Q(payload__icontains=word)
    if person.phone:
        notations = _notations(person.phone)
        for name in _PHONES:
            digits = Func(
                KeyTextTransform(name, "payload"), Value(r"\D"), Value(""), Value("g"),
                function="regexp_replace", output_field=TextField(),
            )  # fmt: skip
            rows = rows.annotate(**{f"{name}_digits": digits})
            mentions |= Q(**{f"{name}_digits__in": notations})
    return rows.filter(mentions)


def _notations(phone: str) -> list[str]:
    """Return the digits of the number in the national and international forms in which people enter it."""
    parsed = phonenumbers.parse(phone)
    national, whole = str(parsed.national_number), f"{parsed.country_code}{parsed.national_number}"
    return [national, f"0{national}", whole, f"00{whole}", f"011{whole}"]


def _ids(person: DataSubject) -> list[int]:
    return list(_schedules_of(person).values_list("pk", flat=True))


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the schedules that name the person and their runs, for export."""
    runs = _runs_of(person)
    return {
        "schedules": personal_data.as_rows(
            _schedules_of(person), "id", "name", "kind", "payload", "status", "created_at"
        ),
        "runs": personal_data.as_rows(
            runs, "id", "schedule", "trigger_at", "payload", "status", "result", "error"
        ),
    }


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Yield why erasure must wait: a sentence for each open schedule and run, at most 20 of each."""
    for pk in _schedules_of(person).filter(status__in=_OPEN).order_by("pk").values_list("pk", flat=True)[:20]:
        yield f"Schedule {pk} still has runs to come. Delete it first."
    named = _schedules_of(person).filter(status__in=_OPEN)
    going = _runs_of(person).filter(ended_at=None).exclude(schedule_id__in=named.values("pk"))
    for pk in going.order_by("pk").values_list("pk", flat=True)[:20]:
        yield f"Run {pk} has not ended. Wait for it or cancel it."


def traces(person: DataSubject) -> list[EventReference]:
    """Return the references in the event log that erasure must clear.

    Schedules are often named after the customer, and receivers may repeat names in their responses.
    """
    ids = _ids(person)
    names: set[str] = set()
    for name, payload in Schedule.objects.filter(pk__in=ids).values_list("name", "payload"):
        names |= {name, *(str(payload[key]) for key in _NAMES if payload.get(key))}
    runs = list(_runs_of(person).values_list("pk", flat=True))
    return [EventReference("schedule", ids, sorted(names, key=len, reverse=True)), EventReference("run", runs)]


def erase(person: DataSubject) -> int:
    """Clear names, payloads, headers and results; return how many schedules changed."""
    ids, runs = _ids(person), [*_runs_of(person).values_list("pk", flat=True)]
    RunReport.objects.filter(run_id__in=runs).update(result=None, error="")
    Run.objects.filter(pk__in=runs).update(result=None, error="")
    Run.objects.filter(pk__in=runs, payload__isnull=False).update(payload={})
    return int(
        Schedule.objects.filter(pk__in=ids).update(
            name=personal_data.ERASED, payload={}, headers={}, version=F("version") + 1
        )
    )


PART = PersonalDataHandler(rows, erase, traces, blocked_by)
