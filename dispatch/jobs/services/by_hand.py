"""What persons do to a job. Each is one transaction: lock, check the version and the table of transitions, act.

`actor` is who does it; `version` is the job's version that they decided on (None: whatever is there). All raise
Job.DoesNotExist, Conflict ("Maria assigned the job to Unit 12 at …") and IllegalTransition (likewise)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction

from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.jobs import policies
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Action, Outcome
from dispatch.jobs.services import state
from dispatch.jobs.services.conflicts import check_legal, check_version, refuse
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician

LONGEST_EXTENSION_S = 3600


@dataclass(frozen=True)
class AssignResult:
    """`assigned` is False when there were warnings and nobody confirmed them; then nothing has changed."""

    job: Job
    warnings: tuple[str, ...]
    assigned: bool


@contextmanager
def acting(job_id: int, action: Action, version: int | None) -> Iterator[Job]:
    """The job, locked, in a transaction in which `action` is legal."""
    with transaction.atomic():
        job = state.lock_job(job_id)
        check_version(job, version)
        check_legal(job, action)
        yield job


def assign(
    job_id: int,
    technician_id: int,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
    confirm_unfit: bool = False,
) -> AssignResult:
    """Assigns the job to a technician of its organization; takes a live offer back and hangs up on it. An unfit
    technician needs `confirm_unfit`.

    Raises ValidationError {technician} for one who is not (or no longer) there, or has the job already."""
    with acting(job_id, Action.ASSIGN, version) as job:
        offer = state.live_offer(job)
        technician = Technician.objects.of(job.organization_id).filter(pk=technician_id, is_active=True).first()
        if technician is None:
            raise ValidationError({"technician": "There is no such technician."})
        if job.status == Job.Status.ASSIGNED and job.technician_id == technician_id:
            raise ValidationError({"technician": f"{technician.name} has this job already."})
        freed = (offer.technician_id if offer else None, job.technician_id)
        technicians.lock([technician.pk, *filter(None, freed)])
        warnings = tuple(_warnings(job, technician, offer))
        if warnings and not confirm_unfit:
            return AssignResult(job, warnings, assigned=False)
        if offer is not None:
            _rescind(offer, Outcome.ASSIGNED_BY_HAND, f"assigned to {technician.name} by hand", actor)
        _release(job, Outcome.ASSIGNED_BY_HAND, f"reassigned to {technician.name}", actor)
        state.assign_to(job, technician.pk, actor=actor, technician=technician.name, by="hand", note=note)
    return AssignResult(job, warnings, assigned=True)


def call_next_now(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Takes a live offer back, hangs up, and offers the job to the next technician at once."""
    with acting(job_id, Action.CALL_NEXT, version) as job:
        if (offer := state.live_offer(job)) is not None:
            _rescind(offer, Outcome.SKIPPED, f"{actor.label} called the next technician", actor)
        job.line_wait_until = None
        state.move_on(job)
        state.save(job)
        state.note(job, "job.called_next", actor=actor, note=note)
    return job


def extend(job_id: int, seconds: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Gives the live offer so many seconds more, once its phone rings: before, its time has not begun. Raises
    ValidationError {seconds} outside 1…3600."""
    if not 1 <= seconds <= LONGEST_EXTENSION_S:
        raise ValidationError({"seconds": f"Between 1 and {LONGEST_EXTENSION_S} seconds."})
    with acting(job_id, Action.EXTEND, version) as job:
        offer = state.live_offer(job)
        if offer is None:
            refuse(job, "Nobody is being offered this job right now, so there is nothing to extend.")
        if offer.ringing_since is None:
            refuse(job, "The phone is not ringing yet, so there is nothing to extend.")
        offer.expires_at += timedelta(seconds=seconds)
        offer.save(update_fields=["expires_at"])
        state.wait_for(job, state.Waiting(job.waiting_for), offer.expires_at)
        state.save(job)
        state.set_timer(job)
        state.note(job, "job.extended", actor=actor, seconds=seconds, technician=offer.technician.name, note=note)
    return job


def pause(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Stops the cascade: a live offer is taken back and hung up on (its technician's turn comes again on
    resuming)."""
    with acting(job_id, Action.PAUSE, version) as job:
        if (offer := state.live_offer(job)) is not None:
            _rescind(offer, Outcome.PAUSED, f"paused by {actor.label}", actor)
        state.stop_waiting(job, state.Waiting.PERSON)
        job.paused_at = clock.now()
        state.save(job)
        state.note(job, "job.paused", actor=actor, note=note)
    return job


def resume(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Goes on where the pause stopped the cascade."""
    with acting(job_id, Action.RESUME, version) as job:
        job.paused_at = None
        state.move_on(job)
        state.save(job)
        state.note(job, "job.resumed", actor=actor, note=note)
    return job


def cancel(job_id: int, reason: str, *, actor: Actor, version: int | None = None) -> Job:
    """Ends the job without a result. Raises ValidationError {reason} when it is empty."""
    if not reason.strip():
        raise ValidationError({"reason": "Say why the job is cancelled."})
    with acting(job_id, Action.CANCEL, version) as job:
        if (offer := state.live_offer(job)) is not None:
            _rescind(offer, Outcome.CANCELLED, "the job was cancelled", actor)
        _release(job, Outcome.CANCELLED, "the job was cancelled", actor)
        job.status, job.pending_reason, job.ended_at = Job.Status.CANCELLED, "", clock.now()
        state.stop_waiting(job, state.Waiting.NOTHING)
        state.save(job)
        state.note(job, "job.cancelled", actor=actor, reason=reason.strip()[:500])
    return job


def complete(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """The work is done; its technician has one open job less."""
    with acting(job_id, Action.COMPLETE, version) as job:
        assert job.technician_id is not None
        technicians.job_over(job.technician_id)
        job.status, job.ended_at = Job.Status.COMPLETED, clock.now()
        state.stop_waiting(job, state.Waiting.NOTHING)
        state.save(job)
        state.note(job, "job.completed", actor=actor, technician_id=job.technician_id, note=note)
    return job


def cannot_make_it(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """The assigned technician gives the job back: they are not offered it again, and the next one is."""
    from dispatch.jobs.services.ranking import begin_dispatch

    with acting(job_id, Action.CANNOT_MAKE_IT, version) as job:
        assert job.technician is not None
        gone = job.technician
        state.note(job, "job.cannot_make_it", actor=actor, technician_id=gone.pk, technician=gone.name, note=note)
        job.not_again = [*job.not_again, gone.pk]
        _release(job, Outcome.CANNOT_MAKE_IT, "cannot make it", actor)
        job.status, job.assigned_at = Job.Status.DISPATCHING, None
        if job.candidates.exists():
            state.move_on(job)
            state.save(job)
        else:  # it was assigned by hand and never dispatched
            begin_dispatch(job)
            if job.status == Job.Status.DISPATCHING:
                state.move_on(job)
                state.save(job)
    return job


def _rescind(offer: Offer, outcome: Outcome, reason: str, actor: Actor) -> None:
    state.settle(offer, Offer.Status.RESCINDED, outcome, reason, actor=actor, hang_up=True)


def _release(job: Job, outcome: Outcome, reason: str, actor: Actor) -> None:
    """Takes the job from its technician, if it has one; the accepted offer is accepted no more."""
    if job.technician_id is None or job.status != Job.Status.ASSIGNED:
        return
    technicians.job_over(job.technician_id)
    accepted = job.offers.select_for_update(no_key=True).filter(status=Offer.Status.ACCEPTED).first()
    if accepted is not None:
        accepted.status, accepted.outcome, accepted.reason = Offer.Status.RESCINDED, outcome, reason[:160]
        accepted.save(update_fields=["status", "outcome", "reason"])
        state.note_offer(accepted, "offer.rescinded", actor=actor, outcome=str(outcome), reason=reason)
    job.technician = None


def _warnings(job: Job, technician: Technician, live: Offer | None) -> Iterator[str]:
    """Why a dispatcher may want to choose somebody else."""
    if technician.pk in job.not_again:
        yield f"{technician.name} said they cannot make it."
    if job.lat is None or job.lng is None:
        if not technician.on_duty:
            yield f"{technician.name} is off duty."
        return
    policy = policies.frozen(job)
    skills = job.service_type.required_skills.values_list("pk", flat=True)
    one = technicians.fitness(technician.pk, job.lat, job.lng, radius_m=policy.radius_m, skill_ids=skills)
    if one.verdict != "in" and not (live and live.technician_id == technician.pk):
        yield f"{technician.name}: {one.reason}."
