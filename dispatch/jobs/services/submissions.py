"""Accept submissions and turn each into exactly one job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F

from accounts.models import ApiKey, Organization
from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows, lock_waits, prepared
from dispatch.core.db.errors import is_lock_timeout, is_temporary
from dispatch.core.db.instances import new_instance
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.events import Actor, NewEvent
from dispatch.core.redis.after_commit import sent_together
from dispatch.core.runtime.queues import enqueue
from dispatch.jobs import geocoding, policies, sql, submission_sql
from dispatch.jobs.geocoding import Location
from dispatch.jobs.models import CustomerTextKind, Job, Submission
from dispatch.jobs.rules.duplicates import address_key
from dispatch.jobs.services import customer_texts, transitions, travel
from dispatch.jobs.services.dispatching import FirstStep, make_first_offer, offer_next
from dispatch.jobs.services.ranking import find_candidates, without_locked, write_ranking
from dispatch.technicians import road_times

log = structlog.get_logger(__name__)

START_JOB = "dispatch.jobs.tasks.start_job"
MAX_STARTS = 3
# Seconds: the time after which the auditor starts a submission that the queue has not; the lease of a start (with
# the auditor's interval, below the 30 s within which a dead start is recovered); the delay after a failed start.
FIRST_START_S, START_LEASE_S, RETRY_S = 10.0, 20.0, 5.0
# Organizations whose technicians' rows were locked a moment ago.
_blocked = RecentlyBlocked(10.0)

# Fields that a job copies from its submission unchanged.
_CARRIED = (
    "service_type_id", "priority", "customer_name", "customer_phone", "address", "notes", "extra",
    "preferred_technician_id", "window_start", "window_end", "expected_minutes",
)  # fmt: skip


class _NotAtOnce(Exception):
    """The submission must be started step by step."""


def accept_submission(
    organization: Organization,
    form: dict[str, Any],
    *,
    raw: Any,
    actor: Actor,
    api_key: ApiKey | None = None,
    idempotency_key: str = "",
) -> Submission:
    """Store a validated form and enqueue it on the dispatch queue after commit.

    `form`: customer_name, customer_phone (a valid number), service_type (a ServiceType), and optionally priority,
    address, lat, lng, notes, extra, preferred_technician (a Technician of the organization). `raw`: the body as
    received.
    Once committed, the submission becomes a job even if any process dies.
    """
    submission = new_submission(organization, form, raw=raw, api_key=api_key, idempotency_key=idempotency_key)
    with transaction.atomic(savepoint=False):
        store_submission(submission, actor)
    return submission


def new_submission(
    organization: Organization,
    form: dict[str, Any],
    *,
    raw: Any,
    api_key: ApiKey | None,
    idempotency_key: str,
    pk: int | None = None,
) -> Submission:
    """Return a submission that is not stored yet, with the id `pk` if given; else as for `accept_submission`."""
    return new_instance(
        Submission,
        id=pk,
        organization=organization,
        form=raw,
        api_key=api_key,
        idempotency_key=idempotency_key,
        next_start_at=clock.now() + timedelta(seconds=FIRST_START_S),
        **form,
    )


def store_submission(submission: Submission, actor: Actor, guard: fast_rows.Guard | None = None) -> bool:
    """Store a new submission and its event in one statement, and enqueue it after commit.

    Return False if the `guard` forbids it.
    """
    service = {"service": submission.service_type.name}
    event = NewEvent(submission.organization_id, "submission.received", actor, service)
    with sent_together():
        if not fast_rows.insert_row(submission, event, guard=guard):
            return False
        enqueue(settings.DISPATCH_QUEUE, START_JOB, submission.pk, organization_id=submission.organization_id)
    return True


def start_job(submission_id: int, *, place: bool = True) -> Job | None:
    """Create the submission's job, exactly once, and offer it to the first technician.

    Return None if another worker started it or its next attempt is not due.

    Call it outside any transaction: the address may be geocoded over the network, and a server may be asked
    for drives. The auditor retries a failed start; after the third failure the job is `pending`, "processing
    failed". `place` as in `offer_next`.
    """
    if place and (started := _start_at_once(submission_id)) is not None:
        job, first = started
        fault_injection.crash_point("jobs.start.committed")
        if first is not None:
            offer_next(job.pk, job.step_token, first=first)
        return job
    submission = _claim_start(submission_id)
    if submission is None:
        return Job.objects.filter(submission_id=submission_id).first()
    fault_injection.crash_point("jobs.start.claimed")
    if submission.starts > MAX_STARTS:
        return _create_job_for_review(submission)
    try:
        where = geocoding.geocode(
            lat=submission.lat,
            lng=submission.lng,
            address=submission.address,
            organization=submission.organization,
        )
        if place and where is not None:
            travel.load_before_start(submission, where.lat, where.lng)
        job, created = _make_job_despite_locks(submission, where)
    except Exception as error:
        if is_temporary(error):
            _postpone(submission, error)
            if is_lock_timeout(error):
                raise
            return None
        log.exception("submission_start_failed", submission=submission_id, start=submission.starts)
        _record_failure(submission, error)
        if submission.starts >= MAX_STARTS:
            return _create_job_for_review(submission)
        return None
    fault_injection.crash_point("jobs.start.committed")
    if created and job.status == Job.Status.DISPATCHING:
        offer_next(job.pk, job.step_token, place=place)
    return job


def _start_at_once(submission_id: int) -> tuple[Job, FirstStep | None] | None:
    """Create the job and make its first offer in one transaction, as most submissions allow.

    Return None, with nothing changed, if the submission has no position, was started before or is being started,
    if drives must be asked for, or after any error: `start_job` then goes step by step, and counts.
    """
    if road_times.may_ask():
        return None
    try:
        with lock_waits.limit_lock_waits(lock_waits.LOOP_S), lock_waits.limited_transaction(defers_fsync=True):
            submission = submission_sql.take_submission(submission_id)
            if submission is None:
                return None
            fault_injection.crash_point("jobs.start.claimed")
            where = geocoding.geocode(
                lat=submission.lat, lng=submission.lng, address="", organization=submission.organization
            )
            if where is None or submission.organization_id in _blocked:
                raise _NotAtOnce
            job, readiness = _create_job(submission, where, only_free=False)
            is_offered = job.status == Job.Status.DISPATCHING
            first = make_first_offer(job, readiness) if is_offered else None
            transitions.insert_job(job)
            return job, first
    except _NotAtOnce:
        return None
    except Exception as error:
        log.warning("submission_not_started_at_once", submission=submission_id, error=str(error).strip())
        return None


def _claim_start(submission_id: int) -> Submission | None:
    """Claim a start by compare-and-set: the first immediately, later ones when due."""
    now = clock.now()
    if not submission_sql.claim_start(submission_id, now, now + timedelta(seconds=START_LEASE_S)):
        return None
    return fast_rows.fetch_by_pk(Submission, submission_id, "organization")


def _record_failure(submission: Submission, error: Exception) -> None:
    Submission.objects.filter(pk=submission.pk, status=Submission.Status.RECEIVED).update(
        last_error=f"{type(error).__name__}: {error}"[:500],
        next_start_at=clock.now() + timedelta(seconds=RETRY_S * submission.starts),
    )


def _postpone(submission: Submission, error: Exception) -> None:
    """Postpone a start without counting it: the database was unavailable, locked or full."""
    log.warning("start_postponed", submission=submission.pk, error=str(error).strip())
    Submission.objects.filter(pk=submission.pk, status=Submission.Status.RECEIVED).update(
        starts=F("starts") - 1, next_start_at=clock.now() + timedelta(seconds=RETRY_S)
    )


def _make_job_despite_locks(submission: Submission, where: Location | None) -> tuple[Job, bool]:
    """Create the job, leaving out technicians whose rows are locked by another session if they block it."""
    if submission.organization_id not in _blocked:
        try:
            return _make_job(submission, where)
        except Exception as error:
            if not is_lock_timeout(error):
                raise
    _blocked.add(submission.organization_id)
    return _make_job(submission, where, only_free=True)


@transaction.atomic
def _make_job(submission: Submission, where: Location | None, *, only_free: bool = False) -> tuple[Job, bool]:
    """Return the submission's job and whether it was created just now.

    `only_free` leaves out technicians whose rows are locked, and raises a lock timeout if no eligible technician
    remains.
    """
    lock_waits.apply_limit(defers_fsync=True)
    if not _mark_processed(submission):
        return Job.objects.get(submission_id=submission.pk), False
    job, _ = _create_job(submission, where, only_free=only_free)
    transitions.insert_job(job)
    return job, True


def _create_job(
    submission: Submission, where: Location | None, *, only_free: bool
) -> tuple[Job, sql.DispatchReadiness]:
    """Create the job of a processed submission, with its candidates. Return it, and what its first step needs.

    The job has its id, but is inserted only after that step (`insert_job`), so that it is written once.
    """
    job = new_instance(
        Job,
        organization=submission.organization,
        submission=submission,
        lat=where.lat if where else None,
        lng=where.lng if where else None,
        position_source=where.source if where else "",
        waiting_for=transitions.Waiting.START,
        waiting_since=clock.now(),
        next_action_at=clock.now(),
        **{name: getattr(submission, name) for name in _CARRIED},
    )
    with prepared.pipeline():
        find_chain = policies.find_chain(job.organization_id, job.service_type_id)
        find_pool = sql.find_pool_of_new_job(job, clock.now())
        find_text_policy = customer_texts.find_policy(job.organization_id)
    chain = find_chain()
    with prepared.pipeline():
        pk = fast_rows.reserve_pk(Job)
        find_duplicate = _find_duplicate(job, chain.duplicate_hours)
        ranking = find_candidates(job, chain)
    job.pk = pk()
    _flag(job, find_duplicate())
    if only_free:
        ranking = without_locked(ranking, job.not_again)
    source = job.position_source
    transitions.append_job_event(job, "job.created", submission_id=submission.pk, position_source=source)
    _append_flag(job)
    write_ranking(job, ranking)
    customer_texts.inform_by_policy(job, CustomerTextKind.RECEIVED, find_text_policy())
    return job, sql.readiness_of_new_job(find_pool(), ranking.ranked, chain.skills, chain.quiet)


def _find_duplicate(job: Job, hours: int) -> Callable[[], int | None]:
    """Return a function for the open job with the same customer phone or address as this unsaved one, if any.

    Jobs that are older than these hours do not count; 0: no job is a duplicate.
    """
    job.address_key = address_key(job.address)
    return sql.find_duplicate(job, clock.now() - timedelta(hours=hours)) if hours else lambda: None


def _flag(job: Job, duplicate_of_id: int | None) -> None:
    """Flag an unsaved job as a probable duplicate of that job."""
    if duplicate_of_id is not None:
        job.duplicate_of_id, job.duplicate_state = duplicate_of_id, Job.DuplicateState.POSSIBLE


def _append_flag(job: Job) -> None:
    if job.duplicate_of_id is not None:
        transitions.append_job_event(job, "job.possible_duplicate", of=job.duplicate_of_id)


@transaction.atomic
def _create_job_for_review(submission: Submission) -> Job:
    """Create a pending job from the raw form so that a dispatcher can handle it."""
    if not _mark_processed(submission):
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
    _flag(job, _find_duplicate(job, policies.duplicate_hours(job.organization_id, job.service_type_id))())
    fast_rows.insert_row(job, transitions.event_of(job, "job.created", submission_id=submission.pk))
    _append_flag(job)
    error = Submission.objects.values_list("last_error", flat=True).get(pk=submission.pk)
    transitions.mark_pending(job, Job.PendingReason.FAILED, error=error, starts=MAX_STARTS)
    customer_texts.inform_customer(job, CustomerTextKind.RECEIVED)
    return job


def _mark_processed(submission: Submission) -> bool:
    """Mark the submission processed (compare-and-set; waits for a concurrent holder).

    Return False if another worker already did.
    """
    return submission_sql.mark_submission_processed(submission.pk)
