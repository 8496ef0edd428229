"""A form becomes a submission, and a submission exactly one job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from accounts.models import ApiKey, Organization
from dispatch.core import clock, faults, rows, statements
from dispatch.core.events import Actor, NewEvent
from dispatch.core.queues import enqueue
from dispatch.jobs import places, sql
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.places import Place
from dispatch.jobs.services import ranking, state
from dispatch.jobs.services.cascade import offer_next

log = structlog.get_logger(__name__)

START_JOB = "dispatch.jobs.tasks.start_job"
MOST_STARTS = 3
# When the auditor begins, if the queue has not; how long a start may take (with the auditor's interval, under the
# 30 s in which a dead one is gone on with); and the pause after one that failed.
FIRST_START_S, START_TAKES_S, RETRY_S = 10.0, 20.0, 5.0

# What a job takes over from its submission as it is.
_CARRIED = ("service_type_id", "priority", "customer_name", "customer_phone", "address", "notes", "extra")


def accept_submission(
    organization: Organization,
    form: dict[str, Any],
    *,
    raw: Any,
    actor: Actor,
    api_key: ApiKey | None = None,
    idempotency_key: str = "",
) -> Submission:
    """Stores a checked form and, after commit, puts it on the dispatch queue.

    `form`: customer_name, customer_phone (E.164), service_type (a ServiceType), and optionally priority, address,
    lat, lng, notes, extra. `raw`: the body as it came. From the commit on, the submission becomes a job, whatever
    dies."""
    with transaction.atomic(savepoint=False):
        submission = Submission(
            organization=organization,
            form=raw,
            api_key=api_key,
            idempotency_key=idempotency_key,
            next_start_at=clock.now() + timedelta(seconds=FIRST_START_S),
            **form,
        )
        service = {"service": submission.service_type.name}
        rows.insert(submission, NewEvent(organization.pk, "submission.received", actor, service))
        enqueue(settings.DISPATCH_QUEUE, START_JOB, submission.pk)
    return submission


def start_job(submission_id: int, *, place: bool = True) -> Job | None:
    """Makes the submission's job, once, and offers it to the first technician. None: it is not to be started now
    (started by another, or its next start is not due).

    Call it outside any transaction: the address may be looked up over the network. A failed start is tried again
    by the auditor; after the third the job is `pending`, "processing failed". `place` as in `offer_next`."""
    submission = _claim(submission_id)
    if submission is None:
        return Job.objects.filter(submission_id=submission_id).first()
    faults.point("jobs.start.claimed")
    if submission.starts > MOST_STARTS:
        return _processing_failed(submission)
    try:
        where = places.locate(
            lat=submission.lat,
            lng=submission.lng,
            address=submission.address,
            organization=submission.organization,
        )
        job, created = _make_job(submission, where)
    except Exception as error:
        log.exception("a start failed", submission=submission_id, start=submission.starts)
        _remember_failure(submission, error)
        if submission.starts >= MOST_STARTS:
            return _processing_failed(submission)
        return None
    faults.point("jobs.start.committed")
    if created and job.status == Job.Status.DISPATCHING:
        offer_next(job.pk, job.step_token, place=place)
    return job


def _claim(submission_id: int) -> Submission | None:
    """Takes the start, by compare-and-set: the first at once, later ones when they are due."""
    now = clock.now()
    if not sql.claim_start(submission_id, now, now + timedelta(seconds=START_TAKES_S)):
        return None
    return rows.get(Submission, submission_id, "organization")


def _remember_failure(submission: Submission, error: Exception) -> None:
    Submission.objects.filter(pk=submission.pk, status=Submission.Status.RECEIVED).update(
        last_error=f"{type(error).__name__}: {error}"[:500],
        next_start_at=clock.now() + timedelta(seconds=RETRY_S * submission.starts),
    )


@transaction.atomic
def _make_job(submission: Submission, where: Place | None) -> tuple[Job, bool]:
    """The submission's job, and whether it was made just now."""
    statements.flush_later()
    if not _processed(submission):
        return Job.objects.get(submission_id=submission.pk), False
    job = Job(
        organization=submission.organization,
        submission=submission,
        lat=where.lat if where else None,
        lng=where.lng if where else None,
        position_source=where.source if where else "",
        waiting_for=state.Waiting.START,
        waiting_since=clock.now(),
        next_action_at=clock.now(),
        **{name: getattr(submission, name) for name in _CARRIED},
    )
    found = ranking.look_around(job)
    source = job.position_source
    rows.insert(job, state.event_of(job, "job.created", submission_id=submission.pk, position_source=source))
    ranking.write(job, found)
    return job, True


@transaction.atomic
def _processing_failed(submission: Submission) -> Job:
    """A job that a person must look at, made of nothing but the form."""
    if not _processed(submission):
        return Job.objects.get(submission_id=submission.pk)
    job = Job(
        organization=submission.organization,
        submission=submission,
        lat=submission.lat,
        lng=submission.lng,
        position_source="form" if submission.lat is not None else "",
        next_action_at=clock.now(),
        **{name: getattr(submission, name) for name in _CARRIED},
    )
    rows.insert(job, state.event_of(job, "job.created", submission_id=submission.pk))
    error = Submission.objects.values_list("last_error", flat=True).get(pk=submission.pk)
    state.give_up(job, Job.PendingReason.FAILED, error=error, starts=MOST_STARTS)
    return job


def _processed(submission: Submission) -> bool:
    """By compare-and-set, so that one job is made of it; waits for who is at it. False: another made it."""
    return sql.submission_processed(submission.pk)
