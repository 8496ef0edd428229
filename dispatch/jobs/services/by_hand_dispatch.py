"""Dispatching a job anew, by hand."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.exceptions import ValidationError

from dispatch.core.events import Actor
from dispatch.jobs import places
from dispatch.jobs.models import Job
from dispatch.jobs.rules import Action
from dispatch.jobs.services import ranking, state
from dispatch.jobs.services.by_hand import acting


@dataclass(frozen=True)
class Correction:
    """A better place for the job; empty or None keeps what it has."""

    address: str = ""
    lat: float | None = None
    lng: float | None = None


def dispatch_again(
    job_id: int,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
    correction: Correction | None = None,
) -> Job:
    """A new dispatch of a pending or cancelled job: today's policy, a fresh ranking, everybody asked anew except
    those who said they cannot make it. A job without a position is looked up again, with the correction if there
    is one.

    Call it outside any transaction (a geocoder may be asked). Raises, besides what `by_hand` says, ValidationError
    {address} when the place still cannot be found. The job may be `pending` again at once: nobody near."""
    before = Job.objects.select_related("organization").get(pk=job_id)
    moved = correction is not None and bool(correction.address or correction.lat is not None)
    better = correction if correction is not None and moved else Correction(before.address, before.lat, before.lng)
    address = better.address or before.address
    where = None
    if moved or before.lat is None:
        where = places.locate(lat=better.lat, lng=better.lng, address=address, organization=before.organization)
    with acting(job_id, Action.DISPATCH_AGAIN, version) as job:
        if where is not None:
            job.address, job.lat, job.lng, job.position_source = address, where.lat, where.lng, where.source
        elif moved or job.lat is None:
            raise ValidationError({"address": "This place could not be found. Give coordinates or a ZIP code."})
        job.status, job.pending_reason = Job.Status.DISPATCHING, ""
        job.technician, job.assigned_at, job.ended_at = None, None, None
        job.first_round = job.round = job.round + 1
        state.note(job, "job.dispatch_again", actor=actor, note=note)
        ranking.begin_dispatch(job)
        if job.status == Job.Status.DISPATCHING:
            state.move_on(job)
            state.save(job)
    return job
