"""Finds what stopped moving and moves it on, from Postgres alone. Every function here is one pass of a loop.

Each row is handled in transactions of its own; one that fails is put off, so that it cannot stop the others, and
after three failures in a row a person is asked. A step is counted as failed before it begins, and no more when it
is done, so that one that ends the process counts as well."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import F, Q, QuerySet

from dispatch.core import clock
from dispatch.jobs import line_waiters, sql
from dispatch.jobs.models import Job, Offer, Submission
from dispatch.jobs.rules import Outcome
from dispatch.jobs.services import state
from dispatch.jobs.services.cascade import offer_next
from dispatch.jobs.services.intake import start_job
from dispatch.jobs.services.offers import call_changed, expire_offer
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

BATCH = 200
# What the queues are given before the auditor does it (seconds).
GRACE_S = 2.0
MOST_FAILURES, PUT_OFF_S = 3, 20.0


def audit() -> int:
    """Starts submissions nobody started, moves on jobs whose next action has passed, and settles offers whose
    call is over. Returns how many rows it looked after. Places no call itself: telephony's placer does."""
    return _submissions() + _jobs() + _ended_calls()


def move_on_waiting() -> int:
    """Looks again for jobs that wait for a line, or for a technician on another offer: those that are due, those
    of whom a technician has become free, and when a line was given back, the first of each organization that
    waits for one. Emergencies first, then the longest waiting."""
    freed = line_waiters.take_freed()
    due = Job.objects.filter(status=Job.Status.DISPATCHING, paused_at=None).exclude(
        offers__status=Offer.Status.PENDING
    )
    waiting = due.filter(
        Q(waiting_for=state.Waiting.LINE, next_action_at__lte=clock.now())
        | Q(waiting_for=state.Waiting.TECHNICIAN, next_action_at__lte=clock.now())
        | Q(waiting_for=state.Waiting.TECHNICIAN, pk__in=sql.jobs_whose_technician_is_free())
        | (Q(pk__in=sql.first_that_wait_for_a_line(due)) if freed else Q(pk__in=[]))
    ).order_by("priority", "waiting_since", "pk")
    rows = waiting.values_list("pk", "step_token")[:BATCH]
    found = _each(rows, lambda pk, token: offer_next(pk, token, place=False))
    if freed and due.filter(waiting_for=state.Waiting.LINE).exists():
        line_waiters.mark()
    return found


def repair_technicians() -> int:
    """Corrects open_jobs and live_offer_id of technicians where they have drifted from the jobs; how many."""
    repaired = 0
    for technician_id in sql.drifted_technicians(BATCH):
        with transaction.atomic():
            Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
            open_jobs = Job.objects.filter(technician_id=technician_id, status=Job.Status.ASSIGNED).count()
            live = Offer.objects.filter(technician_id=technician_id, status=Offer.Status.PENDING).first()
            if technicians.repair(technician_id, open_jobs, live.pk if live else None):
                repaired += 1
                log.warning("a technician's counts had drifted", technician=technician_id, open_jobs=open_jobs)
    return repaired


def _submissions() -> int:
    due = Submission.objects.filter(status=Submission.Status.RECEIVED, next_start_at__lte=clock.now())
    found = 0
    for pk in list(due.order_by("next_start_at").values_list("pk", flat=True)[:BATCH]):
        found += 1
        try:
            start_job(pk, place=False)
        except Exception:  # its claim has put it off already
            log.exception("a submission could not be started", submission=pk)
    return found


def _jobs() -> int:
    past = clock.now() - timedelta(seconds=GRACE_S)
    due = Job.objects.filter(status=Job.Status.DISPATCHING, next_action_at__lte=past).order_by("next_action_at")
    return _each(
        due.values_list("pk", "step_token")[:BATCH], lambda pk, token: expire_offer(pk, token, place=False)
    )


def _ended_calls() -> int:
    """Offers that are pending although their call is over, or is going on and nobody told us."""
    pending = Offer.objects.filter(status=Offer.Status.PENDING)
    silent = (
        Q(ended_at__isnull=False)
        | Q(subject_id__in=pending.filter(ringing_since=None).values("pk"), status__in=("submitted", "unknown"))
        | Q(subject_id__in=pending.filter(answered_at=None).values("pk"), status="answered")
    )
    calls = Call.objects.filter(silent, purpose="offer", subject_id__in=pending.values("pk"))[:BATCH]
    for call in calls:
        try:
            call_changed(call)
        except Exception:
            log.exception("an offer could not be brought up to its call", call=call.pk)
    return len(calls)


def _each(rows: Iterable[tuple], move: Callable) -> int:
    found = 0
    for pk, token in list(rows):
        found += 1
        with structlog.contextvars.bound_contextvars(job=pk):
            _one(pk, token, move)
    return found


def _one(pk: int, token: uuid.UUID, move: Callable) -> None:
    if not _take(pk, token):
        _hand_over_if_hopeless(pk, token)
        return
    try:
        move(pk, token)
    except Exception:
        log.exception("a job could not be moved on")
        _put_off(pk, token)
        _hand_over_if_hopeless(pk, token)
    else:  # mostly the step has saved the job, and with it the count
        _step_of(pk, token).filter(failed_steps__gt=0).update(failed_steps=0)


def _step_of(job_id: int, token: uuid.UUID) -> QuerySet[Job]:
    """The job, while this is its current step."""
    step: QuerySet[Job] = Job.objects.filter(
        pk=job_id, step_token=token, status=Job.Status.DISPATCHING, paused_at=None
    )
    return step


def _take(job_id: int, token: uuid.UUID) -> bool:
    """Counts the step as failed, committed, until it is done. False: it is over, or has failed too often."""
    hopeful = _step_of(job_id, token).filter(failed_steps__lt=MOST_FAILURES)
    return bool(hopeful.update(failed_steps=F("failed_steps") + 1))


def _put_off(job_id: int, token: uuid.UUID) -> None:
    """Tries this step again a little later."""
    _step_of(job_id, token).update(next_action_at=clock.now() + timedelta(seconds=PUT_OFF_S))


def _hand_over_if_hopeless(job_id: int, token: uuid.UUID) -> None:
    """After three failures in a row, asks a person."""
    if not _step_of(job_id, token).filter(failed_steps__gte=MOST_FAILURES).exists():
        return
    try:
        _ask_a_person(job_id, token)
    except Exception:  # tried again a little later
        log.exception("a job that keeps failing could not be handed to a dispatcher", job=job_id)
        _put_off(job_id, token)


@transaction.atomic
def _ask_a_person(job_id: int, token: uuid.UUID) -> None:
    job = state.lock_job(job_id)
    if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != token:
        return
    if (offer := state.live_offer(job)) is not None:
        state.settle(offer, Offer.Status.RESCINDED, Outcome.FAILED, "processing failed", hang_up=True)
    state.give_up(job, Job.PendingReason.FAILED, failures=job.failed_steps)
