"""Check the histories in the event log: legal transitions, tokens that never go back, one owner at a time.

Each slice registers what it promises, in its `history` module:

- a `Machine` for each type of subject. It follows one subject through its events, and its last status must be the
  status of the subject's row;
- an `Ownership` for each thing that has at most one owner at a time, such as a line;
- other checks, as functions.

Everything is read from one snapshot, in a read-only transaction, and streamed in the order of subject and event,
so the memory needed does not depend on the size of the log. A subject's events are in the order of their ids,
because each is appended while the subject's row is locked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, ClassVar

from django.conf import settings
from django.db import connection

from dispatch.core import clock
from dispatch.core.db.snapshots import read_snapshot

FETCH = 2000  # rows per round trip
SUBJECTS = 500  # whose rows are compared at a time


@dataclass(frozen=True)
class Entry:
    """One event of a subject. `verb` is the part of its kind after the dot."""

    id: int
    verb: str
    data: dict[str, Any]


class IllegalStep(Exception):
    """An event that must not follow the events before it. The message completes "call.ringing …"."""


class Machine:
    """Follow one subject of `type`, whose row is in `table`, through its events.

    `status` is None while it is unknown, because retention deleted the events before. `begins_with`: the verbs of
    a first event. `steps_are_pruned`: retention deletes some of its events together with its row, so that the rest
    of a deleted subject's history cannot be checked.
    """

    type: ClassVar[str]
    table: ClassVar[str]
    begins_with: ClassVar[Collection[str]] = ("created",)
    steps_are_pruned: ClassVar[bool] = False

    def __init__(self) -> None:
        self.status: str | None = None
        self.token = 0

    def follow(self, entry: Entry) -> None:
        """Apply the next event. Raises IllegalStep, after which the subject has the status that the event says."""
        raise NotImplementedError

    def has_begun(self, entry: Entry) -> bool:
        """Return whether `entry`, the first one seen, begins the history."""
        return entry.verb in self.begins_with

    def agrees(self, row_status: str) -> bool:
        """Return whether the row may have this status after the events seen."""
        return self.status in (None, row_status)

    def move(self, before: Collection[str], after: str) -> None:
        """Change the status. Raises IllegalStep if it is known and not in `before`."""
        was, self.status = self.status, after
        if was is not None and was not in before:
            raise IllegalStep(f"is illegal after {was}")

    def stay(self, allowed: Collection[str]) -> None:
        """Keep the status. Raises IllegalStep if it is known and not in `allowed`."""
        if self.status is not None and self.status not in allowed:
            raise IllegalStep(f"is illegal after {self.status}")

    def raise_token(self, token: Any) -> None:
        """Accept a new, higher token. Raises IllegalStep otherwise. None (an older version's event) is ignored."""
        if token is None:
            return
        was, self.token = self.token, max(self.token, int(token))
        if int(token) <= was:
            raise IllegalStep(f"has token {token} after token {was}")

    def match_token(self, token: Any) -> None:
        """Raise IllegalStep unless `token` is the current one. None is ignored, and so is the first one seen."""
        if token is None:
            return
        if not self.token:
            self.token = int(token)
        if int(token) != self.token:
            raise IllegalStep(f"has token {token}, but the current one is {self.token}")

    def keep_token(self, token: Any) -> None:
        """Accept the current token or a higher one. Raises IllegalStep if it goes back. None is ignored."""
        if token is None:
            return
        was, self.token = self.token, max(self.token, int(token))
        if int(token) < was:
            raise IllegalStep(f"has token {token} after token {was}")


@dataclass(frozen=True)
class Ownership:
    """At most one owner of a thing at a time.

    `sql` selects (thing, owner, whether it takes or returns the thing, event id), with texts such as "job 7" and
    "offer 12", ordered by thing and event id, from the events whose id is at least %(first)s.
    """

    name: str
    sql: str
    params: dict[str, Any] = field(default_factory=dict)

    def check(self, scope: Scope) -> Iterator[str]:
        """Yield a line for each thing that is taken while another owner has it."""
        for thing, rows in groupby(stream(self.sql, {**self.params, "first": scope.first}), itemgetter(0)):
            owner, since = None, 0
            for _, who, takes, event_id in rows:
                if not takes:
                    owner = None if owner == who else owner
                    continue
                if owner not in (None, who):
                    yield f"{thing}: {who} takes it in event {event_id}, but {owner} has it since event {since}"
                owner, since = who, event_id


@dataclass(frozen=True)
class Scope:
    """What is checked: the events from the id `first` on.

    The history of a subject that was created after `complete_since` must begin with its first event.
    """

    first: int
    complete_since: datetime


@dataclass
class Result:
    """How much was checked."""

    events: int = 0
    subjects: int = 0
    violations: int = 0


Check = Callable[[Scope], Iterator[str]]
_machines: dict[str, type[Machine]] = {}
_checks: dict[str, Check] = {}


def register(*machines: type[Machine]) -> None:
    """Register the machines of a slice. Called from AppConfig.ready()."""
    _machines.update({machine.type: machine for machine in machines})


def register_check(name: str, check: Check) -> None:
    """Register a check that yields a line for each violation. Called from AppConfig.ready()."""
    _checks[name] = check


def violations(result: Result | None = None, *, days: float | None = None) -> Iterator[str]:
    """Yield a line for each violation, and count in `result`. `days`: only what happened since then.

    Call it outside any transaction, so that everything is read from one snapshot.
    """
    counted = result or Result()
    with read_snapshot():
        scope = _scope(days)
        for machine in _machines.values():
            for line in _check_subjects(machine, scope, counted):
                counted.violations += 1
                yield line
        for check in _checks.values():
            for line in check(scope):
                counted.violations += 1
                yield line


def stream(sql: str, params: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query without holding them all in memory."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(sql, params)
        while rows := cursor.fetchmany(FETCH):
            yield from rows


_FIRST_SINCE = """
SELECT COALESCE((SELECT min(id) FROM core_event WHERE at >= %s), (SELECT max(id) + 1 FROM core_event), 0)
"""


def _scope(days: float | None) -> Scope:
    """Return the scope. No organization's retention deletes events younger than EVENT_LOG_MIN_DAYS."""
    kept_since = clock.now() - timedelta(days=settings.EVENT_LOG_MIN_DAYS)
    if days is None:
        return Scope(0, kept_since)
    since = clock.now() - timedelta(days=days)
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_SINCE, [since])
        return Scope(cursor.fetchone()[0], max(kept_since, since))


_EVENTS = """
SELECT subject_id, id, kind, data FROM core_event
WHERE subject_type = %(type)s AND id >= %(first)s ORDER BY subject_id, id
"""


def _check_subjects(machine: type[Machine], scope: Scope, counted: Result) -> Iterator[str]:
    """Follow all subjects of one type, and compare them with their rows."""
    events = stream(_EVENTS, {"type": machine.type, "first": scope.first})
    subjects = (_follow(machine, rows, counted) for _, rows in groupby(events, itemgetter(0)))
    while batch := list(islice(subjects, SUBJECTS)):
        counted.subjects += len(batch)
        rows = _rows(machine.table, [subject.id for subject in batch])
        for subject in batch:
            if subject.id in rows or not machine.steps_are_pruned:
                yield from subject.problems
            if subject.id in rows:  # else retention or an erasure deleted it
                yield from _compare(subject, *rows[subject.id], scope)


@dataclass
class _Subject:
    """A subject after its last event."""

    id: int
    name: str
    machine: Machine
    has_beginning: bool = False
    problems: list[str] = field(default_factory=list)


def _follow(machine: type[Machine], rows: Iterator[tuple[Any, ...]], counted: Result) -> _Subject:
    subject: _Subject | None = None
    for subject_id, event_id, kind, data in rows:
        counted.events += 1
        entry = Entry(event_id, kind.partition(".")[2], json.loads(data) if isinstance(data, str) else data)
        if subject is None:
            subject = _Subject(subject_id, f"{machine.type} {subject_id}", machine())
            subject.has_beginning = subject.machine.has_begun(entry)
        try:
            subject.machine.follow(entry)
        except IllegalStep as why:
            subject.problems.append(f"{subject.name}: {kind} (event {event_id}) {why}")
    assert subject is not None  # a group has at least one row
    return subject


def _rows(table: str, ids: list[int]) -> dict[int, tuple[str, datetime]]:
    with connection.cursor() as cursor:
        quoted = connection.ops.quote_name(table)
        cursor.execute(f"SELECT id, status, created_at FROM {quoted} WHERE id = ANY(%s)", [ids])
        return {row_id: (status, created_at) for row_id, status, created_at in cursor.fetchall()}


def _compare(subject: _Subject, row_status: str, created_at: datetime, scope: Scope) -> Iterator[str]:
    if not subject.machine.agrees(row_status):
        yield f"{subject.name}: its row is {row_status}, but its events end with {subject.machine.status}"
    if not subject.has_beginning and created_at > scope.complete_since:
        yield f"{subject.name}: its history has no beginning"
