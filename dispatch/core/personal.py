"""One person's data: what is kept of them, handed out as JSON, and taken away. Each slice registers its part.

Erasing anonymises rows and never breaks history: counts, times and outcomes stay, what tells who it was goes, in
the event log too. Who has opted out or is not to be called stays on those lists, as they asked."""

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
from dispatch.core.events import Actor
from dispatch.core.models import Event, RememberedAnswer
from dispatch.core.problems import Conflict

ERASED = "erased"
BATCH = 500


@dataclass(frozen=True)
class Person:
    """Who it is, in one organization: a customer by `phone` (E.164) or `email`; a technician or a user by id, with
    the phone and e-mail that they have."""

    organization_id: int
    phone: str = ""
    email: str = ""
    technician_id: int | None = None
    user_id: int | None = None

    @property
    def words(self) -> list[str]:
        """What names nobody else."""
        return [word for word in (self.phone, self.email) if word]


@dataclass(frozen=True)
class Trace:
    """Subjects of the event log that are about the person, and the names by which the events may call them."""

    subject_type: str
    ids: Sequence[int]
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Part:
    """What one slice keeps. `rows`: as JSON, by table; `erase`: anonymises and returns how many rows it touched;
    `traces`: where the log speaks of them; `blocked_by`: why it cannot be done now, in sentences."""

    rows: Callable[[Person], dict[str, list[dict[str, Any]]]]
    erase: Callable[[Person], int]
    traces: Callable[[Person], Iterable[Trace]] = field(default=lambda person: ())
    blocked_by: Callable[[Person], Iterable[str]] = field(default=lambda person: ())


_parts: dict[str, Part] = {}


def register(name: str, part: Part) -> None:
    """Called from AppConfig.ready()."""
    _parts[name] = part


class StillNeeded(Conflict):
    """409: something that is open needs the data; its text says what to end first."""

    default_code = "still_needed"


class _Plain(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return str(o)


def as_rows(rows: QuerySet, *names: str) -> list[dict[str, Any]]:
    """The rows as JSON, all fields unless some are named."""
    found: list[dict[str, Any]] = json.loads(json.dumps(list(rows.order_by("pk").values(*names)), cls=_Plain))
    return found


def export(person: Person, *, actor: Actor) -> dict[str, list[dict[str, Any]]]:
    """All that is kept of the person, by table; that it was handed out is in the event log."""
    with transaction.atomic():
        found: dict[str, list[dict[str, Any]]] = {}
        for part in _parts.values():
            found |= {name: rows for name, rows in part.rows(person).items() if rows}
        log = _events_about(person, _traces(person))
        if told := as_rows(log, "id", "kind", "subject_type", "subject_id", "actor_label", "data", "at"):
            found["events"] = told
        _note(person, "exported", actor, {name: len(rows) for name, rows in found.items()})
    return found


def erase(person: Person, *, actor: Actor) -> dict[str, int]:
    """Takes away what tells who it was; how many rows of each part. Raises StillNeeded when something open needs
    it; then nothing is changed."""
    with transaction.atomic():
        reasons = [reason for part in _parts.values() for reason in part.blocked_by(person)]
        if reasons:
            raise StillNeeded(" ".join(reasons))
        traces = _traces(person)
        counts = {"events": _erase_events(person, traces)}
        for name, part in reversed(_parts.items()):  # the upper slices first: they find theirs by the lower ones
            counts[name] = part.erase(person)
        answers = RememberedAnswer.objects.filter(
            _says("body", person.words), organization_id=person.organization_id
        )
        counts["remembered answers"] = answers.delete()[0] if person.words else 0
        counts = {name: count for name, count in counts.items() if count}
        _note(person, "erased", actor, counts)
    return counts


def _traces(person: Person) -> list[Trace]:
    return [trace for part in _parts.values() for trace in part.traces(person) if trace.ids]


def _events_about(person: Person, traces: Sequence[Trace]) -> QuerySet[Event]:
    about = _says("data", person.words)
    for trace in traces:
        ids = list(trace.ids)
        about |= Q(subject_type=trace.subject_type, subject_id__in=ids)
        about |= Q(actor_type=trace.subject_type, actor_id__in=ids)
        about |= Q(**{f"data__{trace.subject_type}_id__in": ids})
    found = Event.objects.filter(about, organization_id=person.organization_id)
    return found if person.words or traces else found.none()


def _says(column: str, words: Sequence[str]) -> Q:
    """Rows whose JSON in `column` has one of the words in it; none without words."""
    says = Q(pk__in=[])
    for word in words:
        says |= Q(**{f"{column}__icontains": word})
    return says


def _erase_events(person: Person, traces: Sequence[Trace]) -> int:
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
    """The JSON value with every match replaced."""
    if isinstance(value, str):
        return pattern.sub(ERASED, value)
    if isinstance(value, dict):
        return {name: _without(one, pattern) for name, one in value.items()}
    return [_without(one, pattern) for one in value] if isinstance(value, list) else value


def _note(person: Person, verb: str, actor: Actor, counts: dict[str, int]) -> None:
    """Who did it and how much it was; not whose data: that is what was to be forgotten."""
    named = [name for name in ("phone", "email", "technician_id", "user_id") if getattr(person, name)]
    events.append(
        person.organization_id, f"person.{verb}", person.technician_id or person.user_id or 0, actor=actor,
        named_by=named, counts=counts,
    )  # fmt: skip
