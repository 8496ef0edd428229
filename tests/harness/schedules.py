"""The vocabulary of the schedules tests: create schedules, advance time, execute, report, lose messages.

Nothing runs by itself. `execute()` is the executor's step over all shards; `work()` processes the queues of the
kinds; `settle()` processes the status queue; `go()` does all three until nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils.module_loading import import_string
from rq.job import Job

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event
from dispatch.core.runtime.queues import rq_queue
from dispatch.schedules import kinds
from dispatch.schedules.kinds.base import Assignment, Kind, LeaseCheck, Outcome
from dispatch.schedules.models import SHARDS, Run, Schedule
from dispatch.schedules.rules.outcomes import SUCCEEDED
from dispatch.schedules.services import reconciliation, schedules
from dispatch.schedules.services.executor import claim_due_runs
from tests.support import factories

ALL = range(SHARDS)
ANA = Actor("user", 7, "Ana Dispatcher")


class NoteKind(Kind):
    """Remembers what it was asked to do, and does what the test says."""

    name = "http"  # its queue exists
    label = "Note"
    scope = "messages:write"

    def __init__(self) -> None:
        self.done: list[Assignment] = []
        self.answers: list[Outcome | BaseException] = []
        self.created: dict[int, dict[str, Any]] = {}

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        """Anything goes."""

    def check_headers(self, headers: Any) -> None:
        """Nor these."""

    def summary(self, payload: Any) -> str:
        return "note"

    def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome]]:
        for one in given:
            if not keep(one):
                continue
            self.done.append(one)
            answer = self.answers.pop(0) if self.answers else Outcome(SUCCEEDED, {"noted": len(self.done)})
            if isinstance(answer, BaseException):
                raise answer
            yield one, answer

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        return {one.run_id: self.created[one.run_id] for one in given if one.run_id in self.created}

    @property
    def times(self) -> list[datetime]:
        """The trigger times of what was done, in order."""
        return [one.trigger_at for one in self.done]


@dataclass(frozen=True)
class Message:
    """What was on a queue."""

    queue: str
    func: str
    args: list[Any] = field(default_factory=list)

    def deliver(self) -> None:
        import_string(self.func)(*self.args)


class World:
    """One organization in Phoenix (no daylight saving), unless a schedule names another zone."""

    def __init__(self) -> None:
        self.organization = factories.organization("Copper State HVAC", time_zone="America/Phoenix")
        self.note = NoteKind()

    # --- What there is
    def schedule(self, name: str = "Visit", **fields: Any) -> Schedule:
        """Of the noting kind, unless `kind` says otherwise."""
        fields.setdefault("kind", "http")
        fields.setdefault("payload", {"url": "https://example.com/hook"})
        fields.setdefault("time_zone", self.organization.time_zone)
        fields.setdefault("retry_schedule_s", [60, 300])
        return schedules.create_schedule(self.organization.pk, {"name": name, **fields}, actor=ANA)

    def at(self, text: str, zone: str = "") -> datetime:
        """Return the moment of a text such as 2026-03-08 02:30 in the zone (default: UTC)."""
        naive = datetime.fromisoformat(text)
        return naive.replace(tzinfo=ZoneInfo(zone) if zone else UTC)

    # --- Time
    def travel_to(self, moment: datetime | str) -> None:
        """Moves the clock to that moment (text is UTC)."""
        to = self.at(moment) if isinstance(moment, str) else moment
        clock.travel((to - clock.now()).total_seconds())

    def travel(self, seconds: float) -> None:
        clock.travel(seconds)

    # --- What runs
    def execute(self, shards: Sequence[int] = ALL) -> int:
        """Claims until nothing more is due; how many runs were taken."""
        taken = 0
        while (done := claim_due_runs(shards)).found:
            taken += done.taken
        return taken

    def messages(self, *queues: str) -> list[Message]:
        """Takes what is on these queues (default: all of the schedules')."""
        names = queues or (*settings.SCHEDULE_KIND_QUEUES.values(), settings.SCHEDULE_STATUS_QUEUE)
        found = []
        for name in names:
            queue = rq_queue(name)
            for job_id in queue.job_ids:
                job = Job.fetch(job_id, connection=queue.connection, serializer=queue.serializer)
                found.append(Message(name, str(job.func_name), list(job.args)))
            queue.empty()
        return found

    def work(self) -> None:
        """The workers of all kinds work off their queues."""
        for message in self.messages(*settings.SCHEDULE_KIND_QUEUES.values()):
            message.deliver()

    def settle(self) -> None:
        """The status worker works off its queue."""
        for message in self.messages(settings.SCHEDULE_STATUS_QUEUE):
            message.deliver()

    def go(self) -> None:
        """Everything that is due now, to its end."""
        while True:
            self.execute()
            if not (found := self.messages()):
                return
            for message in found:
                message.deliver()

    def go_until(self, moment: datetime | str, step_s: float = 60.0) -> None:
        """Lets time go by in steps, everything running."""
        to = self.at(moment) if isinstance(moment, str) else moment
        while clock.now() < to:
            self.travel(min(step_s, (to - clock.now()).total_seconds()))
            self.go()

    def reconcile(self) -> int:
        return reconciliation.reconcile_runs()

    # --- Outcome
    def runs(self, schedule: Schedule, *statuses: str) -> list[Run]:
        found = Run.objects.filter(schedule=schedule).order_by("trigger_at", "pk")
        return list(found.filter(status__in=statuses) if statuses else found)

    def run(self, schedule: Schedule, number: int | None = 1) -> Run:
        return Run.objects.get(schedule=schedule, number=number)

    def statuses(self, schedule: Schedule) -> list[str]:
        """Of its occurrences, in order."""
        found = Run.objects.filter(schedule=schedule).exclude(number=None).order_by("number")
        return list(found.values_list("status", flat=True))

    def again(self, schedule: Schedule) -> Schedule:
        return Schedule.objects.get(pk=schedule.pk)

    def told(self, subject: Schedule | Run) -> list[str]:
        """The verbs of its events, in order."""
        kind = "schedule" if isinstance(subject, Schedule) else "run"
        found = Event.objects.filter(subject_type=kind, subject_id=subject.pk).order_by("id")
        return [name.partition(".")[2] for name in found.values_list("kind", flat=True)]


@contextmanager
def noting(note: NoteKind) -> Iterator[NoteKind]:
    """The kind "http" notes what it is asked to do while the block runs."""
    real = kinds.get_kind("http")
    kinds.register(note)
    try:
        yield note
    finally:
        kinds.register(real)


__all__ = ["ALL", "ANA", "SYSTEM", "Message", "NoteKind", "World", "noting"]
