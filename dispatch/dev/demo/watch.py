"""Follow one organization's event log and report each event once, as soon as it is committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dispatch.core.models import Event
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.timeline import Entry, describe_event

# Calls are covered by their offers; the rest is internal.
QUIET = ("call.", "api_key.", "membership.", "technician.", "job.created", "offer.accepted")
# How many earlier events are checked again: ids are assigned before the commit, so a lower id may appear later.
LOOK_BACK = 500


@dataclass(frozen=True)
class JobEvent:
    """One line of a job's history. `submission_id` is None if it concerns no submission."""

    submission_id: int | None
    at: datetime
    text: str
    tone: str


class Watcher:
    """Follow the log: `step()` passes new events to `on_event`, in log order."""

    def __init__(self, organization_id: int, on_event: Callable[[JobEvent], None]) -> None:
        self._organization_id = organization_id
        self._on_event = on_event
        self._highest = 0
        self._seen: set[int] = set()
        self._jobs: dict[int, int] = {}
        self._offers: dict[int, int] = {}

    def step(self) -> int:
        """Report new events and return their number."""
        rows = Event.objects.filter(organization_id=self._organization_id, id__gt=self._highest - LOOK_BACK)
        ids = set(rows.values_list("pk", flat=True)) - self._seen
        fresh = Event.objects.filter(pk__in=ids).order_by("id") if ids else []
        for event in fresh:
            self._seen.add(event.pk)
            self._highest = max(self._highest, event.pk)
            if not event.kind.startswith(QUIET):
                line = describe_event(event)
                self._on_event(JobEvent(self._submission_of(event), event.at, sentence(line), line.tone))
        return len(ids)

    def _submission_of(self, event: Event) -> int | None:
        if event.subject_type == "submission":
            return event.subject_id
        if event.subject_type == "job":
            return self._of_job(event.subject_id)
        if event.subject_type == "offer":
            return self._of_job(_cached(self._offers, event.subject_id, _job_of_offer))
        return None

    def _of_job(self, job_id: int | None) -> int | None:
        return None if job_id is None else _cached(self._jobs, job_id, _submission_of_job)


def sentence(line: Entry) -> str:
    """Describe the event, without naming Dispatch or the form's API key as the actor."""
    if line.actor_type not in ("system", "api_key"):
        return line.text
    return line.did[:1].upper() + line.did[1:]


def _job_of_offer(pk: int) -> int:
    return Offer.objects.values_list("job_id", flat=True).get(pk=pk)


def _submission_of_job(pk: int) -> int:
    return Job.objects.values_list("submission_id", flat=True).get(pk=pk)


def _cached(known: dict[int, int], key: int, find: Callable[[int], int]) -> int:
    if key not in known:
        known[key] = find(key)
    return known[key]
