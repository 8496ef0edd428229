"""Steps shared by all changes of a job. Call them in the transaction that locked the job."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from dispatch.core import clock, events
from dispatch.core.db import fast_rows, lock_waits, prepared
from dispatch.core.events import SYSTEM, Actor, NewEvent
from dispatch.core.runtime.queues import enqueue, enqueue_in
from dispatch.jobs import metrics, offer_sql, policies, sql
from dispatch.jobs.models import CustomerTextKind, Job, Offer, TechnicianNotice
from dispatch.jobs.rules import MISSES, OFFER_LEGAL, REACHED_OUTCOMES, Outcome
from dispatch.jobs.services import customer_texts, line_wakeups, notices, sms
from dispatch.technicians import services as technicians
from dispatch.telephony import services as telephony

OFFER_NEXT = "dispatch.jobs.tasks.offer_next"
OFFER_TIMED_OUT = "dispatch.jobs.tasks.offer_timed_out"

Waiting = Job.WaitingFor
OUTAGE_REASONS = (Job.PendingReason.PROVIDER_DOWN, Job.PendingReason.ACCOUNT_REFUSED)

# Fields copied from the submission, which never change.
_STAYS = {
    "id", "organization", "submission", "service_type", "priority", "customer_name", "customer_phone", "notes",
    "extra", "preferred_technician", "created_at",
}  # fmt: skip
_MOVING = tuple(field.name for field in Job._meta.concrete_fields if field.name not in _STAYS)


def lock_job(job_id: int, *related: str) -> Job:
    """Return the job locked until the end of the transaction, with `related` rows. Raises Job.DoesNotExist."""
    return fast_rows.fetch_by_pk(Job, job_id, *related, lock=True)


def live_offers(job: Job) -> list[Offer]:
    """Return the job's pending offers, locked, with their technicians, by slot. Most jobs have at most one."""
    condition = "t.job_id = %s AND t.status = 'pending' ORDER BY t.slot"
    return fast_rows.fetch_many(Offer, condition, [job.pk], "technician", lock=True)


def lock_live_offer(job: Job, offer_id: int) -> Offer | None:
    """Return this offer of the job, locked, with its technician; or None if it is no longer pending."""
    condition = "t.job_id = %s AND t.id = %s AND t.status || '' = 'pending'"
    return fast_rows.fetch_one(Offer, condition, [job.pk, offer_id], "technician", lock=True)


# Of a dispatching job (r2), which is locked before its offer. The statuses are expressions, so that PostgreSQL
# cannot use a partial index on one: without statistics, it reads all rows of such an index instead of looking up
# the primary key.
_LIVE_OFFER = """
t.id = %s AND t.job_id = %s AND t.status || '' = 'pending' AND r2.status || '' = 'dispatching'
FOR NO KEY UPDATE OF r2, t
"""


def lock_offer_with_job(job_id: int, offer_id: int) -> Offer | None:
    """Return this pending offer of a dispatching job, with its job and technician; lock the job, then the offer.

    None if the offer is no longer pending, or the job no longer dispatching.
    """
    lock_waits.apply_limit()
    rows = fast_rows.fetch_many(Offer, _LIVE_OFFER, [offer_id, job_id], "technician", "job")
    return rows[0] if rows else None


# The same, of several offers, with the job as r2, and without waiting for a lock.
_FREE_OFFERS = """
t.id = ANY(%s::bigint[]) AND t.status || '' = 'pending' AND r2.status || '' = 'dispatching'
ORDER BY t.id FOR NO KEY UPDATE OF t, r2 SKIP LOCKED
"""


def find_free_offers(offer_ids: Collection[int], *related: str) -> Callable[[], dict[int, Offer]]:
    """Return a function for these pending offers of dispatching jobs, but not those that are locked elsewhere.

    They are locked together with their jobs, and have their technicians and the `related` rows. Offers of one job
    share it. A pipeline does not wait for it.
    """
    find = fast_rows.find_many(
        Offer, _FREE_OFFERS, [prepared.integers(sorted(offer_ids))], "technician", "job", *related
    )

    def answer() -> dict[int, Offer]:
        jobs: dict[int, Job] = {}
        offers = {offer.pk: offer for offer in find()}
        for offer in offers.values():
            offer.job = jobs.setdefault(offer.job_id, offer.job)
        return offers

    return answer


def has_declined(job: Job, technician_id: int) -> bool:
    """Return whether the technician has declined this job."""
    return bool(job.offers.filter(technician_id=technician_id, outcome=Outcome.DECLINED).exists())


def save_job(job: Job, *, visible: bool = True) -> None:
    """Write the job. A `visible` change, which may affect a person's decision, increments the version.

    A new job that has its id is inserted.
    """
    if visible:
        job.version += 1
    job.failed_steps = 0
    if job._state.adding:
        fast_rows.insert_row(job)
    else:
        fast_rows.update_row(job, _MOVING)


def insert_job(job: Job) -> None:
    """Insert a new job that has its id, unless a step of this transaction has saved it."""
    if job._state.adding:
        fast_rows.insert_row(job)


def append_job_event(job: Job, kind: str, *, actor: Actor = SYSTEM, **data: Any) -> None:
    """Append an Event about the job. Empty values are omitted."""
    events.append_later(event_of(job, kind, actor=actor, **data), job.pk)


def event_of(job: Job, kind: str, *, actor: Actor = SYSTEM, **data: Any) -> NewEvent:
    """Return the Event of `append_job_event`, to be written together with the job."""
    values = {name: value for name, value in data.items() if value not in (None, "")}
    return NewEvent(job.organization_id, kind, actor, values)


def append_offer_event(
    offer: Offer, kind: str, *, actor: Actor = SYSTEM, technician: str = "", **data: Any
) -> None:
    """Append an Event about an offer with its job and technician. `technician`: the name, to save a query."""
    events.append_later(event_of_offer(offer, kind, actor=actor, technician=technician, **data), offer.pk)


def event_of_offer(
    offer: Offer, kind: str, *, actor: Actor = SYSTEM, technician: str = "", **data: Any
) -> NewEvent:
    """Return the Event of `append_offer_event`, to be written together with the offer."""
    subject = {
        "job_id": offer.job_id,
        "technician_id": offer.technician_id,
        "technician": technician or offer.technician.name,
        "attempt": offer.attempt,
    }
    return NewEvent(offer.organization_id, kind, actor, {**subject, **data})


def wait_for(job: Job, waiting_for: Waiting, at: datetime, *, new_token: bool = True) -> None:
    """Make the job wait until `at` at the latest. A new token invalidates all earlier timers."""
    if job.waiting_for != waiting_for:
        job.waiting_for, job.waiting_since = waiting_for, clock.now()
    job.next_action_at = at
    if new_token:
        job.step_token = uuid.uuid4()


def advance_job(job: Job, *, enqueued: bool = True) -> None:
    """Make the next offer due now. `enqueued`: a worker runs it; otherwise the caller invokes `offer_next`."""
    wait_for(job, Waiting.START, clock.now())
    if enqueued:
        enqueue_next_offer(job)


def enqueue_next_offer(job: Job) -> None:
    """Have a worker run `offer_next` with the current token."""
    enqueue(settings.DISPATCH_QUEUE, OFFER_NEXT, job.pk, str(job.step_token), organization_id=job.organization_id)


def set_timer(job: Job, at: datetime | None = None) -> None:
    """Enqueue a timeout task for `at`, such as the deadline of one of several offers (default: the next action).

    The task carries the remaining technicians for people who inspect the queue; the rows decide.
    """
    at = at or job.next_action_at
    assert at is not None
    seconds = (at - clock.now()).total_seconds()
    enqueue_in(
        settings.DISPATCH_TIMEOUT_QUEUE,
        max(seconds, 0.0),
        OFFER_TIMED_OUT,
        job.pk,
        str(job.step_token),
        sql.remaining_technicians(job),
        organization_id=job.organization_id,
    )


def wait_until(job: Job, until: datetime) -> None:
    """Make the next offer due at `until`. No phone rings meanwhile."""
    wait_for(job, Waiting.START, until)
    set_timer(job)


def close_offer(
    offer: Offer,
    status: Offer.Status,
    outcome: Outcome,
    reason: str,
    *,
    before: Offer.Status = Offer.Status.PENDING,
    actor: Actor = SYSTEM,
    hang_up: bool,
    frees_technician: bool = True,
    **data: Any,
) -> bool:
    """Close an offer and, unless their row must not be changed now, free its technician; `hang_up`: end its call.

    Return False if the offer's status was not `before`. Raises ValueError if `status` may not follow `before`.
    """
    if status not in OFFER_LEGAL[before]:
        raise ValueError(f"An offer that is {before} does not become {status}.")
    now = clock.now()
    if not offer_sql.close_offer(offer.pk, before, status=status, outcome=outcome, reason=reason[:160], now=now):
        return False
    offer.status, offer.outcome, offer.reason, offer.settled_at = status, outcome, reason[:160], now
    metrics.offers.labels(str(outcome)).inc()
    if frees_technician and outcome in REACHED_OUTCOMES:
        technicians.end_answered_offer(offer.technician_id, offer.pk)
    else:
        if frees_technician:
            technicians.end_offer(offer.technician_id, offer.pk)
        _count_misses(offer, outcome)
    append_offer_event(offer, f"offer.{status}", actor=actor, outcome=str(outcome), reason=reason, **data)
    if hang_up and (call := telephony.open_call_of("offer", offer.pk)):
        telephony.hang_up(call.pk, actor=actor, reason=reason)
    line_wakeups.offer_closed()
    return True


def _count_misses(offer: Offer, outcome: Outcome) -> None:
    if outcome in REACHED_OUTCOMES:
        technicians.record_answered_call(offer.technician_id)
    elif outcome in MISSES:
        service = Job.objects.values_list("service_type_id", flat=True).get(pk=offer.job_id)
        policy = policies.for_service_type(offer.organization_id, service)
        technicians.record_missed_call(offer.technician_id, policy.auto_pause_misses)


def mark_pending(job: Job, reason: Job.PendingReason, **data: Any) -> None:
    """Make the job `pending` and append the Event that alerts dispatchers.

    The alert of a job whose trial call failed continues.
    """
    was_trial = job.is_trial
    job.status, job.pending_reason = Job.Status.PENDING, reason
    stop_waiting(job, Waiting.PERSON)
    save_job(job)
    said = {"reason": str(reason), "reason_text": str(reason.label), **data}
    if was_trial and reason in OUTAGE_REASONS:
        append_job_event(job, "job.trial_failed", **said)
        return
    if was_trial:
        append_job_event(job, "job.provider_back")
    append_job_event(job, "job.pending", **said)


def assign_to(
    job: Job, technician_id: int, *, actor: Actor, technician: str, offer_id: int | None = None, **data: Any
) -> None:
    """Assign the job to the technician. The caller has checked that this is legal."""
    job.status, job.pending_reason = Job.Status.ASSIGNED, ""
    job.technician_id, job.assigned_at, job.ended_at = technician_id, clock.now(), None
    is_sent_at_any_hour, job.calls_at_any_hour = job.calls_at_any_hour, False
    stop_waiting(job, Waiting.NOTHING)
    job.on_the_way_at = job.eta_at = job.started_at = None
    job.late_minutes = job.late_reported_at = None
    expect_start(job)
    save_job(job)
    technicians.add_open_job(technician_id)
    append_job_event(
        job,
        "job.assigned",
        actor=actor,
        technician_id=technician_id,
        technician=technician,
        offer_id=offer_id,
        **data,
    )
    if actor.type == "technician":
        sms.send_address(job, technician_id, actor=actor)
        notices.supersede(job, technician_id, because="they accepted the job")
    else:
        news = TechnicianNotice.News.ASSIGNED
        notices.inform(job, technician_id, news, is_sent_at_any_hour=is_sent_at_any_hour)
        if notices.is_assignment_deferred(job):  # the customer is informed when the technician is
            return
    customer_texts.inform_customer(job, CustomerTextKind.ASSIGNED)


def stop_waiting(job: Job, waiting_for: Waiting) -> None:
    """Remove the timer: the job waits for a person, or for nothing."""
    wait_for(job, waiting_for, clock.now())
    job.next_action_at = job.line_wait_until = job.technician_wait_until = job.paused_at = None
    job.fill_at = None
    job.attention_at = job.reminded_at = None
    job.is_trial = False


def expect_start(job: Job) -> None:
    """Make the assigned job need attention unless it is started within its arrival window.

    Without a window, or after it, within the time of its policy.
    """
    start_within_s = policies.frozen_policy(job).start_within_s
    job.reminded_at = None
    job.attention_at = seconds_from_now(start_within_s) if start_within_s else None
    if job.window_end is not None and job.window_end > clock.now():
        job.attention_at = job.window_end


def expect_end(job: Job) -> None:
    """Make the started job need attention unless it is completed within the time of its policy."""
    finish_within_s = policies.frozen_policy(job).finish_within_s
    job.reminded_at = None
    job.attention_at = seconds_from_now(finish_within_s) if finish_within_s else None


def seconds_from_now(seconds: float) -> datetime:
    """Return the time `seconds` from now."""
    return clock.now() + timedelta(seconds=seconds)
