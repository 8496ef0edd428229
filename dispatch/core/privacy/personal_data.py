"""Export and erase one person's data. Each slice registers a handler for its data.

Erasing anonymizes rows and keeps the history: counts, times and outcomes stay, and identifying values are removed,
also from the event log. Opt-outs and do-not-call entries stay, because the person asked for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models import Q, QuerySet

from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.models import Event, RememberedAnswer

ERASED = "erased"
BATCH = 500


@dataclass(frozen=True)
class DataSubject:
    """A person in one organization.

    A customer is identified by `phone` (E.164) or `email`, a technician or a user by id together with the current
    phone and e-mail.
    """

    organization_id: int
    phone: str = ""
    email: str = ""
    technician_id: int | None = None
    user_id: int | None = None

    @property
    def words(self) -> list[str]:
        """Return the values that identify only this person."""
        return [word for word in (self.phone, self.email) if word]


@dataclass(frozen=True)
class EventReference:
    """Event subjects that concern the person, and the names by which their events may mention the person."""

    subject_type: str
    ids: Sequence[int]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class PersonalDataHandler:
    """Handle one slice's data about a person.

    `rows` returns the data as JSON, by table. `erase` anonymizes it and returns how many rows it changed. `traces`
    refers to the events about the person. `blocked_by` returns sentences that say why erasing must wait.
    """

    rows: Callable[[DataSubject], dict[str, list[dict[str, Any]]]]
    erase: Callable[[DataSubject], int]
    traces: Callable[[DataSubject], Iterable[EventReference]] = field(default=lambda person: ())
    blocked_by: Callable[[DataSubject], Iterable[str]] = field(default=lambda person: ())


_parts: dict[str, PersonalDataHandler] = {}


def register(name: str, part: PersonalDataHandler) -> None:
    """Register a slice's handler. Called from AppConfig.ready()."""
    _parts[name] = part


class StillNeeded(Conflict):
    """409: an open job, call or other item needs the data. The text says what must end first."""

    default_code = "still_needed"


class _PlainEncoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return str(o)


def as_rows(rows: QuerySet, *names: str) -> list[dict[str, Any]]:
    """Return the rows as JSON, with all fields unless some are named."""
    data: list[dict[str, Any]] = json.loads(
        json.dumps(list(rows.order_by("pk").values(*names)), cls=_PlainEncoder)
    )
    return data


def export_person(person: DataSubject, *, actor: Actor) -> dict[str, list[dict[str, Any]]]:
    """Return all data of the person, by table, and record the export in the event log."""
    with transaction.atomic():
        data: dict[str, list[dict[str, Any]]] = {}
        for part in _parts.values():
            data |= {name: rows for name, rows in part.rows(person).items() if rows}
        log = _events_about(person, _traces(person))
        if entries := as_rows(log, "id", "kind", "subject_type", "subject_id", "actor_label", "data", "at"):
            data["events"] = entries
        _record(person, "exported", actor, {name: len(rows) for name, rows in data.items()})
    return data


def erase_person(person: DataSubject, *, actor: Actor) -> dict[str, int]:
    """Remove the values that identify the person; return the number of changed rows by slice.

    Raises StillNeeded, and changes nothing, if an open item needs the data.
    """
    with transaction.atomic():
        reasons = [reason for part in _parts.values() for reason in part.blocked_by(person)]
        if reasons:
            raise StillNeeded(" ".join(reasons))
        traces = _traces(person)
        changed = _erase_events(person, traces)
        counts = {"events": len(changed)}
        for name, part in reversed(
            _parts.items()
        ):  # higher slices first: they find their rows through lower slices
            counts[name] = part.erase(person)
        answers = RememberedAnswer.objects.filter(
            _rows_mentioning("body", person.words), organization_id=person.organization_id
        )
        counts["remembered answers"] = answers.delete()[0] if person.words else 0
        counts = {name: count for name, count in counts.items() if count}
        _record(person, "erased", actor, counts)
    return counts


def _traces(person: DataSubject) -> list[EventReference]:
    return [trace for part in _parts.values() for trace in part.traces(person) if trace.ids]


def _events_about(person: DataSubject, traces: Sequence[EventReference]) -> QuerySet[Event]:
    about = _rows_mentioning("data", person.words)
    for trace in traces:
        ids = list(trace.ids)
        about |= Q(subject_type=trace.subject_type, subject_id__in=ids)
        about |= Q(actor_type=trace.subject_type, actor_id__in=ids)
        about |= Q(**{f"data__{trace.subject_type}_id__in": ids})
    rows = Event.objects.filter(about, organization_id=person.organization_id)
    return rows if person.words or traces else rows.none()


def _rows_mentioning(column: str, words: Sequence[str]) -> Q:
    """Return a condition for rows whose JSON in `column` contains one of the words; none without words."""
    mentions = Q(pk__in=[])
    for word in words:
        mentions |= Q(**{f"{column}__icontains": word})
    return mentions


def _erase_events(person: DataSubject, traces: Sequence[EventReference]) -> int:
    names = [name for trace in traces for name in trace.names if len(name) > 1]
    pattern = re.compile(
        "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in [*person.words, *names]) or r"(?!)"
    )
    changed = []
    for event in _events_about(person, traces).iterator(chunk_size=BATCH):
        data, label = _without(event.data, pattern), pattern.sub(ERASED, event.actor_label)
        if (data, label) != (event.data, event.actor_label):
            event.data, event.actor_label = data, label
            changed.append(event)
    Event.objects.bulk_update(changed, ["data", "actor_label"], batch_size=BATCH)
    return len(changed)


def _without(value: Any, pattern: re.Pattern[str]) -> Any:
    """Return the JSON value with every match replaced."""
    if isinstance(value, str):
        return pattern.sub(ERASED, value)
    if isinstance(value, dict):
        return {name: _without(item, pattern) for name, item in value.items()}
    return [_without(item, pattern) for item in value] if isinstance(value, list) else value


def _record(person: DataSubject, verb: str, actor: Actor, counts: dict[str, int]) -> None:
    """Record who exported or erased how many rows, but not whose: that would be personal data again."""
    named = [name for name in ("phone", "email", "technician_id", "user_id") if getattr(person, name)]
    events.append(
        person.organization_id, f"person.{verb}", person.technician_id or person.user_id or 0, actor=actor,
        named_by=named, counts=counts,
    )  # fmt: skip
