"""Follows one organization's event log and tells each happening once, as soon as it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from dispatch.core.models import Event
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.timeline import Entry, entry

# Calls are told by their offers; the rest is machinery.
QUIET = ("call.", "api_key.", "membership.", "technician.", "job.created", "offer.accepted")
# How many events back are looked at again: ids are given before the commit, so a lower one may appear later.
LOOK_BACK = 500


@dataclass(frozen=True)
class Happening:
    """One line of one job's story; `submission_id` is None when it is about no submission."""

    submission_id: int | None
    at: datetime
    text: str
    tone: str


class Watcher:
    """`step()` tells everything new to `told`, in the order of the log."""

    def __init__(self, organization_id: int, told: Callable[[Happening], None]) -> None:
        self._organization_id = organization_id
        self._told = told
        self._highest = 0
        self._seen: set[int] = set()
        self._jobs: dict[int, int] = {}
        self._offers: dict[int, int] = {}

    def step(self) -> int:
        """How many events were new."""
        rows = Event.objects.filter(organization_id=self._organization_id, id__gt=self._highest - LOOK_BACK)
        ids = set(rows.values_list("pk", flat=True)) - self._seen
        fresh = Event.objects.filter(pk__in=ids).order_by("id") if ids else []
        for event in fresh:
            self._seen.add(event.pk)
            self._highest = max(self._highest, event.pk)
            if not event.kind.startswith(QUIET):
                line = entry(event)
                self._told(Happening(self._submission_of(event), event.at, sentence(line), line.tone))
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
    """What happened, without naming ourselves or the form's API key as the one who did it."""
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


def refs_by_submission(accepted: Mapping[str, int]) -> dict[int, str]:
    """Submission id → the ref of the first line that made it."""
    found: dict[int, str] = {}
    for ref, pk in accepted.items():
        found.setdefault(pk, ref)
    return found
