"""Export and erase one person's data. Each slice registers a handler for its data.

Erasing anonymizes rows and keeps the history: counts, times and outcomes stay, and identifying values are removed,
also from the event log and the admin's log. Opt-outs and do-not-call entries stay, because the person asked for
them. A person is followed to a fixed point: an email address leads to submissions, these to phone numbers, and so
on. Finally every text and JSON column of the organization is searched for the phone numbers and email addresses
(`scrubbing`). What was erased is recorded for the next restore (`replay`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.admin.models import LogEntry
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Concat

from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.audit import chain
from dispatch.core.events import Actor
from dispatch.core.models import Event, RememberedAnswer
from dispatch.core.privacy import replay, scrubbing

ERASED = scrubbing.ERASED
BATCH = 500


@dataclass(frozen=True)
class DataSubject:
    """A person in one organization.

    A customer is identified by `phone` (E.164) or `email`, a technician or a user by id together with the current
    phone and email. Of an invited person who has not joined, the organization has the invitation only, and not the
    user: `invitation_id` is the id of the membership. `phone` is empty, because the inviter entered it.
    `is_whole_account`: export also what a user shares with other organizations. Only operators may.
    """

    organization_id: int
    phone: str = ""
    email: str = ""
    technician_id: int | None = None
    user_id: int | None = None
    invitation_id: int | None = None
    is_whole_account: bool = False

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
class Identifiers:
    """Values that a slice's rows hold about a person.

    `phones` (E.164) and `emails` identify the same person elsewhere. `names` (names and addresses) do so only in
    rows that also concern the person for another reason.
    """

    phones: frozenset[str] = frozenset()
    emails: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PersonalDataHandler:
    """Handle one slice's data about a person.

    `rows` returns the data as JSON, by table. `erase` anonymizes it and returns how many rows it changed. `traces`
    refers to the events about the person. `blocked_by` returns sentences that say why erasing must wait.
    `identifiers` returns further values that identify the person. `keeps` are labels of models that keep values.
    """

    rows: Callable[[DataSubject], dict[str, list[dict[str, Any]]]]
    erase: Callable[[DataSubject], int]
    traces: Callable[[DataSubject], Iterable[EventReference]] = field(default=lambda person: ())
    blocked_by: Callable[[DataSubject], Iterable[str]] = field(default=lambda person: ())
    identifiers: Callable[[DataSubject], Identifiers] = field(default=lambda person: Identifiers())
    keeps: tuple[str, ...] = ()


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
        subjects, _ = follow_identifiers(person)
        data: dict[str, list[dict[str, Any]]] = {}
        for subject in subjects:
            for part in _parts.values():
                for name, rows in part.rows(subject).items():
                    known = data.get(name, [])
                    if new := [row for row in rows if row not in known]:
                        data[name] = known + new
        log = _events_about(person.organization_id, _words(subjects), _traces(subjects))
        if entries := as_rows(log, "id", "kind", "subject_type", "subject_id", "actor_label", "data", "at"):
            data["events"] = entries
        _record(person, "exported", actor, {name: len(rows) for name, rows in data.items()})
    return data


def erase_person(person: DataSubject, *, actor: Actor, is_replay: bool = False) -> dict[str, int]:
    """Remove the values that identify the person; return the number of changed rows by slice.

    Raises StillNeeded, and changes nothing, if an open item needs the data. `is_replay`: the erasure is repeated
    after a restore, so it is already recorded.
    """
    with transaction.atomic():
        subjects, names = follow_identifiers(person)
        reasons = [
            reason for subject in subjects for part in _parts.values() for reason in part.blocked_by(subject)
        ]
        if reasons:
            raise StillNeeded(" ".join(dict.fromkeys(reasons)))
        traces, words = _traces(subjects), _words(subjects)
        counts = {"admin log": _erase_admin_log(traces)}
        for name, part in reversed(
            _parts.items()
        ):  # higher slices first: they find their rows through lower slices
            counts[name] = sum(part.erase(subject) for subject in subjects)
        changed = _erase_events(person.organization_id, words, traces, names)  # also those that the parts appended
        counts["events"] = len(changed)
        answers = RememberedAnswer.objects.filter(
            _rows_mentioning("body", words), organization_id=person.organization_id
        )
        counts["remembered answers"] = answers.delete()[0] if words else 0
        kept = {label for part in _parts.values() for label in part.keeps}
        counts["other rows"] = scrubbing.scrub_organization(person.organization_id, words, names, kept)
        counts = {name: count for name, count in counts.items() if count}
        _record(person, "erased", actor, counts, redacted=chain.redact_events(changed))
        if not is_replay:
            replay.record_erasure(
                person.organization_id, words, technician_id=person.technician_id, user_id=person.user_id,
                invitation_id=person.invitation_id,
            )  # fmt: skip
    return counts


def follow_identifiers(person: DataSubject) -> tuple[list[DataSubject], frozenset[str]]:
    """Return the person, first as given, then by every phone and email that leads to them; and their names.

    Each identifier is followed once, until no row yields another.
    """
    subjects, names = [person], set[str]()
    known = {person.phone, person.email}
    for subject in subjects:  # grows meanwhile
        for part in _parts.values():
            found = part.identifiers(subject)
            names |= found.names
            for phone in sorted(found.phones - known):
                subjects.append(DataSubject(person.organization_id, phone=phone))
            for email in sorted(found.emails - known):
                subjects.append(DataSubject(person.organization_id, email=email))
            known |= found.phones | found.emails
    return subjects, frozenset(name for name in names if len(name) > 1)


def _words(subjects: Sequence[DataSubject]) -> list[str]:
    return list(dict.fromkeys(word for subject in subjects for word in subject.words))


def _traces(subjects: Sequence[DataSubject]) -> list[EventReference]:
    found = (trace for subject in subjects for part in _parts.values() for trace in part.traces(subject))
    return [trace for trace in found if trace.ids]


def _events_about(organization_id: int, words: Sequence[str], traces: Sequence[EventReference]) -> QuerySet[Event]:
    about = _rows_mentioning("data", words) | _rows_mentioning("actor_label", words)
    for trace in traces:
        ids = list(trace.ids)
        about |= Q(subject_type=trace.subject_type, subject_id__in=ids)
        about |= Q(actor_type=trace.subject_type, actor_id__in=ids)
        about |= Q(**{f"data__{trace.subject_type}_id__in": ids})
    rows = Event.objects.filter(about, organization_id=organization_id)
    return rows if words or traces else rows.none()


def _rows_mentioning(column: str, words: Sequence[str]) -> Q:
    """Return a condition for rows whose text or JSON in `column` contains one of the words; none without words."""
    mentions = Q(pk__in=[])
    for word in words:
        mentions |= Q(**{f"{column}__icontains": word})
    return mentions


def _erase_events(
    organization_id: int, words: Sequence[str], traces: Sequence[EventReference], names: Iterable[str]
) -> list[Event]:
    """Remove the identifying values from the events, and return the changed events."""
    named = {name for trace in traces for name in trace.names if len(name) > 1} | set(names)
    pattern = scrubbing.word_pattern(words, named)
    changed = []
    for event in _events_about(organization_id, words, traces).iterator(chunk_size=BATCH):
        data, label = scrubbing.scrub_json(event.data, pattern), pattern.sub(ERASED, event.actor_label)
        if (data, label) != (event.data, event.actor_label):
            event.data, event.actor_label = data, label
            changed.append(event)
    Event.objects.bulk_update(changed, ["data", "actor_label"], batch_size=BATCH)
    return changed


def _erase_admin_log(traces: Sequence[EventReference]) -> int:
    """Remove the names of the objects and the changed values from the admin's log; return how many entries."""
    count = 0
    for trace in traces:
        entries = LogEntry.objects.filter(
            content_type__model=trace.subject_type, object_id__in=[str(pk) for pk in trace.ids]
        )
        name = Concat(Value(f"{trace.subject_type.capitalize()} "), "object_id")
        count += entries.exclude(object_repr=name, change_message="").update(object_repr=name, change_message="")
    return count


def _record(
    person: DataSubject, verb: str, actor: Actor, counts: dict[str, int], *, redacted: dict[str, str] | None = None
) -> None:
    """Record who exported or erased how many rows, but not whose: that would be personal data again.

    `redacted` has the new digests of changed events of the audit log (`core.audit.chain`). Every erasure has it,
    except those by processes of version 0.1.0 (`core.audit.verification`).
    """
    ids = ("technician_id", "user_id", "invitation_id")
    named = [name for name in ("phone", "email", *ids) if getattr(person, name)]
    subject_id = next((getattr(person, name) for name in ids if getattr(person, name)), 0)
    events.append(
        person.organization_id, f"person.{verb}", subject_id, actor=actor, named_by=named, counts=counts,
        **({} if redacted is None else {"redacted": redacted}),
    )  # fmt: skip
