"""The small steps that every change of a job is made of. Call them inside the transaction that locked the job."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from dispatch.core import clock, events, rows
from dispatch.core.events import SYSTEM, Actor, NewEvent
from dispatch.core.queues import enqueue, enqueue_in, wake
from dispatch.jobs import metrics, policies, sql
from dispatch.jobs.line_waiters import WAITING_LOOP
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import MISSES, THERE, Outcome
from dispatch.jobs.services import texts
from dispatch.technicians import services as technicians
from dispatch.telephony import services as telephony

OFFER_NEXT = "dispatch.jobs.tasks.offer_next"
OFFER_TIMED_OUT = "dispatch.jobs.tasks.offer_timed_out"

Waiting = Job.WaitingFor

# What a job took over from its submission stays as it is.
_STAYS = {
    "id", "organization", "submission", "service_type", "priority", "customer_name", "customer_phone", "notes",
    "extra", "created_at",
}  # fmt: skip
_MOVING = tuple(field.name for field in Job._meta.concrete_fields if field.name not in _STAYS)


def lock_job(job_id: int, *related: str) -> Job:
    """The job, locked to the end of the transaction, with related rows read along. Raises Job.DoesNotExist."""
    return rows.get(Job, job_id, *related, lock=True)


def live_offer(job: Job) -> Offer | None:
    """The job's pending offer, locked, with its technician, or None."""
    return rows.one(Offer, "t.job_id = %s AND t.status = 'pending'", [job.pk], "technician", lock=True)


def save(job: Job, *, visible: bool = True) -> None:
    """Writes the job. `visible`: a change that somebody may have decided on, which makes a new version."""
    if visible:
        job.version += 1
    job.failed_steps = 0
    rows.update(job, _MOVING)


def note(job: Job, kind: str, *, actor: Actor = SYSTEM, **data: Any) -> None:
    """Appends an Event about the job; empty values are left out."""
    event = event_of(job, kind, actor=actor, **data)
    events.append(event.organization_id, kind, job.pk, actor=actor, **event.data)


def event_of(job: Job, kind: str, *, actor: Actor = SYSTEM, **data: Any) -> NewEvent:
    """What `note` appends, for who writes it together with the job."""
    kept = {name: value for name, value in data.items() if value not in (None, "")}
    return NewEvent(job.organization_id, kind, actor, kept)


def note_offer(offer: Offer, kind: str, *, actor: Actor = SYSTEM, technician: str = "", **data: Any) -> None:
    """Appends an Event about an offer, with its job and technician (`technician`: their name, from who has it at
    hand)."""
    event = event_of_offer(offer, kind, actor=actor, technician=technician, **data)
    events.append(event.organization_id, kind, offer.pk, actor=actor, **event.data)


def event_of_offer(
    offer: Offer, kind: str, *, actor: Actor = SYSTEM, technician: str = "", **data: Any
) -> NewEvent:
    """What `note_offer` appends, for who writes it together with the offer."""
    whose = {
        "job_id": offer.job_id,
        "technician_id": offer.technician_id,
        "technician": technician or offer.technician.name,
        "attempt": offer.attempt,
    }
    return NewEvent(offer.organization_id, kind, actor, {**whose, **data})


def wait_for(job: Job, what: Waiting, at: datetime, *, new_token: bool = True) -> None:
    """The job waits for `what`, and is looked at again at `at` at the latest. A new token makes every timer that
    was set before void."""
    if job.waiting_for != what:
        job.waiting_for, job.waiting_since = what, clock.now()
    job.next_action_at = at
    if new_token:
        job.step_token = uuid.uuid4()


def move_on(job: Job, *, enqueued: bool = True) -> None:
    """The next technician's turn, now. `enqueued`: by a worker; else the caller calls `offer_next` itself."""
    wait_for(job, Waiting.START, clock.now())
    if enqueued:
        enqueue(settings.DISPATCH_QUEUE, OFFER_NEXT, job.pk, str(job.step_token))


def set_timer(job: Job) -> None:
    """Has the timeout queue look at the job when its next action is due. The remaining technicians travel along
    as a hint for who reads the queue; the rows decide."""
    assert job.next_action_at is not None
    seconds = (job.next_action_at - clock.now()).total_seconds()
    enqueue_in(
        settings.DISPATCH_TIMEOUT_QUEUE,
        max(seconds, 0.0),
        OFFER_TIMED_OUT,
        job.pk,
        str(job.step_token),
        sql.remaining_technicians(job),
    )


def wait_out(job: Job, until: datetime) -> None:
    """Nobody rings; the next technician's turn comes at `until`."""
    wait_for(job, Waiting.START, until)
    set_timer(job)


def settle(
    offer: Offer,
    status: Offer.Status,
    outcome: Outcome,
    reason: str,
    *,
    actor: Actor = SYSTEM,
    hang_up: bool,
    **data: Any,
) -> bool:
    """Ends a pending offer, frees its technician, and with `hang_up` ends its call. False: it was not pending."""
    now = clock.now()
    changed = Offer.objects.filter(pk=offer.pk, status=Offer.Status.PENDING).update(
        status=status, outcome=outcome, reason=reason[:160], settled_at=now
    )
    if not changed:
        return False
    offer.status, offer.outcome, offer.reason, offer.settled_at = status, outcome, reason[:160], now
    metrics.offers.labels(str(outcome)).inc()
    technicians.offer_over(offer.technician_id, offer.pk)
    _count_misses(offer, outcome)
    note_offer(offer, f"offer.{status}", actor=actor, outcome=str(outcome), reason=reason, **data)
    if hang_up and (call := telephony.open_call_of("offer", offer.pk)):
        telephony.hang_up(call.pk, actor=actor, reason=reason)
    wake(WAITING_LOOP)
    return True


def _count_misses(offer: Offer, outcome: Outcome) -> None:
    if outcome in THERE:
        technicians.reached(offer.technician_id)
    elif outcome in MISSES:
        service = Job.objects.values_list("service_type_id", flat=True).get(pk=offer.job_id)
        policy = policies.for_service_type(offer.organization_id, service)
        technicians.missed(offer.technician_id, policy.auto_pause_misses)


def give_up(job: Job, reason: Job.PendingReason, **data: Any) -> None:
    """The job needs a dispatcher: `pending`, with the Event that alerts them."""
    job.status, job.pending_reason = Job.Status.PENDING, reason
    stop_waiting(job, Waiting.PERSON)
    save(job)
    note(job, "job.pending", reason=str(reason), reason_text=str(reason.label), **data)


def assign_to(
    job: Job, technician_id: int, *, actor: Actor, technician: str, offer_id: int | None = None, **data: Any
) -> None:
    """The job is the technician's. The caller has checked that it may be."""
    job.status, job.pending_reason = Job.Status.ASSIGNED, ""
    job.technician_id, job.assigned_at, job.ended_at = technician_id, clock.now(), None
    stop_waiting(job, Waiting.NOTHING)
    save(job)
    technicians.job_assigned(technician_id)
    note(
        job,
        "job.assigned",
        actor=actor,
        technician_id=technician_id,
        technician=technician,
        offer_id=offer_id,
        **data,
    )
    texts.tell_address(job, technician_id, actor=actor)


def stop_waiting(job: Job, what: Waiting) -> None:
    """No timer any more: what is left waits for a person, or for nothing."""
    wait_for(job, what, clock.now())
    job.next_action_at = job.line_wait_until = job.technician_wait_until = job.paused_at = None


def seconds_from_now(seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)
