"""Recover stalled submissions and jobs using only PostgreSQL. Every public function is one pass of a loop.

Each row is handled in separate transactions. A failed row is postponed so that it can't block the others; after
three consecutive failures a dispatcher is alerted. A step is counted as failed before it begins and uncounted when
it is done, so that a step that kills the process counts as well. A row locked by another session is skipped. A
step that is blocked by a locked row is postponed without counting as failed; if an organization has too many of
those, the rest of its rows are postponed to a later pass.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest

from dispatch.core import clock
from dispatch.core.db import lock_waits
from dispatch.core.db.due_rows import DueIndex
from dispatch.core.db.errors import is_lock_timeout
from dispatch.core.db.isolation import FailureRule, run_each, run_unlocked, unlocked_ids, unlocked_rows
from dispatch.core.db.lock_waits import RecentlyBlocked, limit_lock_waits, limited_transaction
from dispatch.core.events import SYSTEM
from dispatch.jobs import sql
from dispatch.jobs.models import Job, Offer, Submission
from dispatch.jobs.rules import Outcome
from dispatch.jobs.services import line_wakeups, slots, transitions
from dispatch.jobs.services.answers import apply_answers_before_closing, apply_recorded_key
from dispatch.jobs.services.dispatching import offer_next, unavailable_technicians
from dispatch.jobs.services.offers import call_changed, expire_offer
from dispatch.jobs.services.recovery import resume_left_behind
from dispatch.jobs.services.submissions import start_job
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

BATCH = 200
# Grace period of the queues before the auditor acts (seconds).
GRACE_S = 2.0
MAX_FAILURES, POSTPONE_S = 3, 20.0
_FOR_THE_PROVIDER = (
    transitions.Waiting.PROVIDER,
    transitions.Waiting.ACCOUNT,
    transitions.Waiting.SPEND_CAP,
)
# After this many tries of a pass that left a job waiting for a line of a pool, the jobs behind it are not tried.
MAX_TRIES_FOR_A_POOL = 10
# After this many lock timeouts, the remaining rows of an organization are postponed, too, for this long.
MAX_LOCK_TIMEOUTS, BLOCKED_S = 3, 5.0
_blocked_calls, _failed_offers = RecentlyBlocked(POSTPONE_S), RecentlyBlocked(POSTPONE_S)
_failed_technicians = RecentlyBlocked(60.0, longest_s=3600.0)
_SKIP_TECHNICIAN = FailureRule[int](_failed_technicians.add)

# Hundreds of thousands of submissions and jobs can be overdue when workers were away, so they have an index by
# organization. The rows of the other loops are as few as calls in progress or decisions of people.
_DUE_SUBMISSIONS = DueIndex("jobs_submission", "next_start_at", "status = 'received'")
_STEP = ("id", "step_token", "organization_id")
_StepRow = tuple[int, uuid.UUID, int]
_WAIT = ("waiting_for", "next_action_at", "line_pool_id", "line_wait_until")
_WaitRow = tuple[int, uuid.UUID, int, str, datetime, int | None, datetime | None]
_DUE_JOBS = DueIndex("jobs_job", "next_action_at", "status = 'dispatching'")


def audit() -> int:
    """Recover stalled submissions, jobs and offers; return the number of rows handled.

    Starts submissions that no worker started, advances jobs whose next action is overdue, closes offers whose call
    has ended or whose job is no longer offered, and resumes jobs whose outage is over. Telephony places the calls.
    """
    with limit_lock_waits(lock_waits.LOOP_S):
        return (
            _start_due_submissions()
            + _advance_due_jobs()
            + _sync_ended_calls()
            + _withdraw_left_offers()
            + resume_left_behind()
        )


def move_on_waiting() -> int:
    """Retry jobs that wait for a line or for a technician with another offer; return the number handled.

    These are the jobs that are due, jobs with a technician who became free and, if a line was released, the first
    waiting job of each organization. Emergencies come first, then the jobs that have waited longest. Last come
    the jobs that are calling somebody already and are due to call another technician at once. Of many jobs that
    wait for a line of one pool, the first are tried; `audit` tries those that stay due.
    """
    offer = partial(offer_next, place=False)
    freed = line_wakeups.take_freed_pools()
    due = Job.objects.filter(status=Job.Status.DISPATCHING, paused_at=None).exclude(
        offers__status=Offer.Status.PENDING
    )
    is_woken = Q(pk__in=sql.jobs_whose_technician_is_free(but=unavailable_technicians()))
    waiting = due.filter(
        Q(waiting_for=transitions.Waiting.LINE, next_action_at__lte=clock.now())
        | Q(waiting_for=transitions.Waiting.TECHNICIAN, next_action_at__lte=clock.now())
        | Q(waiting_for__in=_FOR_THE_PROVIDER, next_action_at__lte=clock.now())
        | Q(is_woken, waiting_for=transitions.Waiting.TECHNICIAN)
        | (Q(pk__in=sql.first_jobs_waiting_for_a_line(due)) if freed else Q(pk__in=[]))
    ).order_by("priority", "waiting_since", "pk")
    with limit_lock_waits(lock_waits.LOOP_S):
        rows = unlocked_rows(waiting, BATCH, *_STEP, *_WAIT)
        count = _advance_each(_rows_to_try(rows), offer)
        to_fill = Job.objects.filter(
            status=Job.Status.DISPATCHING, next_action_at__lte=clock.now(), paused_at=None
        )
        to_fill = to_fill.filter(fill_at__lte=clock.now()).order_by("priority", "fill_at", "pk")
        count += _advance_each(unlocked_rows(to_fill, BATCH, *_STEP), offer)
    if freed and due.filter(waiting_for=transitions.Waiting.LINE).exists():
        line_wakeups.mark_waiting()
    return count


def repair_technicians() -> int:
    """Correct technicians whose open_jobs, live_offer_id or planned_times differ from the jobs.

    Return the number corrected.
    """
    drifted = sql.drifted_technicians(BATCH, but=_failed_technicians.keys())
    with limit_lock_waits(lock_waits.LOOP_S):
        return run_each(_repair_technician, drifted, event="technician_not_repaired", rule=_SKIP_TECHNICIAN)


@transaction.atomic
def _repair_technician(technician_id: int) -> int:
    free = Technician.objects.select_for_update(no_key=True, skip_locked=True)
    if free.filter(pk=technician_id).first() is None:
        return 0  # locked by another session: the next pass finds it again
    open_jobs = Job.objects.filter(technician_id=technician_id, status=Job.Status.ASSIGNED).count()
    live = Offer.objects.filter(technician_id=technician_id, status=Offer.Status.PENDING).first()
    planned = sql.planned_times(technician_id)
    if not technicians.repair_technician(technician_id, open_jobs, live.pk if live else None, planned):
        return 0
    log.warning("technician_counts_repaired", technician=technician_id, open_jobs=open_jobs)
    return 1


def _start_due_submissions() -> int:
    now = clock.now()
    due = Submission.objects.filter(status=Submission.Status.RECEIVED, next_start_at__lte=now)
    rows = _DUE_SUBMISSIONS.unlocked_rows(now, BATCH, "id", "organization_id")
    timeouts: Counter[int] = Counter()
    for pk, organization_id in rows:
        if timeouts[organization_id] >= MAX_LOCK_TIMEOUTS:
            at = clock.now() + timedelta(seconds=BLOCKED_S)
            with limited_transaction():
                Submission.objects.filter(pk__in=unlocked_ids(due.filter(pk=pk), 1)).update(next_start_at=at)
            continue
        try:
            start_job(pk, place=False)
        except Exception as error:  # the claim has already postponed it
            if is_lock_timeout(error):
                timeouts[organization_id] += 1
                log.warning("submission_blocked_by_a_lock", submission=pk)
            else:
                log.exception("submission_start_failed", submission=pk)
    return len(rows)


def _advance_due_jobs() -> int:
    past = clock.now() - timedelta(seconds=GRACE_S)
    rows = _DUE_JOBS.unlocked_rows(past, BATCH, *_STEP)
    return _advance_each(rows, partial(expire_offer, place=False))


def _sync_ended_calls() -> int:
    """Update pending offers whose call has ended, or progressed without a webhook, oldest first."""
    ids = sql.silent_offer_calls(BATCH, but=_blocked_calls.keys())
    found = list(Call.objects.filter(pk__in=ids).order_by("pk")) if ids else []
    run_each(_apply_call, found, event="offer_call_sync_failed", rule=_SKIP_CALL)
    return len(found)


def _apply_call(call: Call) -> int:
    call_changed(call)
    return 1


_SKIP_CALL: FailureRule[Call] = FailureRule(lambda call: _blocked_calls.add(call.pk))


def _withdraw_left_offers() -> int:
    """Withdraw pending offers of jobs that are no longer offered, or paused.

    A process of the previous version withdraws only one offer of a job that was offered to several technicians.
    """
    is_offered = Q(job__status=Job.Status.DISPATCHING, job__paused_at=None)
    left = Offer.objects.filter(~is_offered, status=Offer.Status.PENDING)
    return run_unlocked(
        _withdraw_left_offer, left.order_by("pk"), BATCH, event="offer_not_withdrawn", skipped=_failed_offers
    )


@transaction.atomic
def _withdraw_left_offer(offer_id: int) -> int:
    job = transitions.lock_job(Offer.objects.values_list("job_id", flat=True).get(pk=offer_id))
    offer = transitions.lock_live_offer(job, offer_id)
    if offer is None or (job.status == Job.Status.DISPATCHING and job.paused_at is None):
        return 0
    state, outcome = (
        ("paused", Outcome.PAUSED) if job.paused_at else (str(Job.Status(job.status).label), Outcome.TAKEN)
    )
    reason = f"the job is {state.lower()}"
    transitions.close_offer(offer, Offer.Status.RESCINDED, outcome, reason, hang_up=True)
    return 1


def _rows_to_try(rows: Sequence[_WaitRow]) -> Iterator[_StepRow]:
    """Yield the rows of waiting jobs, whose columns are _STEP and _WAIT, except those that cannot go now.

    Not yielded are jobs whose technician an earlier job of the pass took or missed, unless they are due, and jobs
    behind others that wait for a line of their pool (see `_PoolTries`). A try costs tens of statements, and
    hundreds of jobs may wait for one technician or one line.
    """
    now = clock.now()
    woken = {pk for pk, *_, why, at, _, _ in rows if why == transitions.Waiting.TECHNICIAN and at > now}
    free = set(woken)
    tries = _PoolTries(rows, now)
    for row in rows:
        pk, token, organization_id, *_ = row
        if pk in free:
            still_free = sql.jobs_whose_technician_is_free(but=unavailable_technicians()).filter(pk__in=free)
            free = set(still_free.values_list("pk", flat=True))
        if (pk in free or pk not in woken) and not tries.is_behind(row):
            free.discard(pk)
            yield pk, token, organization_id
            tries.record(row)


class _PoolTries:
    """Count the tries of a pass that left a job waiting for a line, by organization and pool.

    The jobs of an organization are tried in the order in which they get lines. A job that waits for a line is
    polled, so the jobs behind it get none of that pool (`DispatchReadiness.others_first`).
    """

    def __init__(self, rows: Sequence[_WaitRow], now: datetime) -> None:
        keys = Counter(key for row in rows if (key := self._key_of(row, now)) is not None)
        self._crowds = {key for key, count in keys.items() if count > MAX_TRIES_FOR_A_POOL}
        self._left_waiting: Counter[tuple[int, int]] = Counter()
        self._now = now

    @staticmethod
    def _key_of(row: _WaitRow, now: datetime) -> tuple[int, int] | None:
        """Return the organization and the pool that the job waits for, or None if it does not or no longer."""
        _, _, organization_id, why, _, pool_id, until = row
        if why != transitions.Waiting.LINE or pool_id is None or until is None or until <= now:
            return None
        return organization_id, pool_id

    def is_behind(self, row: _WaitRow) -> bool:
        """Return whether enough jobs before this one were tried and wait for a line of its pool."""
        key = self._key_of(row, self._now)
        return key is not None and self._left_waiting[key] >= MAX_TRIES_FOR_A_POOL

    def record(self, row: _WaitRow) -> None:
        """Count the try of this job, if others may be behind it and it waits for a line of its pool again."""
        key = self._key_of(row, self._now)
        if key in self._crowds and key is not None:
            job = Job.objects.filter(pk=row[0], waiting_for=transitions.Waiting.LINE, line_pool_id=key[1])
            polled = job.filter(failed_steps=0, next_action_at__gt=clock.now())
            self._left_waiting[key] += polled.exclude(offers__status=Offer.Status.PENDING).exists()


def _advance_each(rows: Iterable[_StepRow], move: Callable) -> int:
    """Advance each job of these rows, whose columns are _STEP; return how many there are."""
    timeouts: Counter[int] = Counter()
    count = 0
    for pk, token, organization_id in rows:
        count += 1
        with structlog.contextvars.bound_contextvars(job=pk):
            try:
                if timeouts[organization_id] >= MAX_LOCK_TIMEOUTS:
                    _postpone_step(pk, token, BLOCKED_S)
                else:
                    _advance_job(pk, token, move)
            except Exception as error:
                if not is_lock_timeout(error):
                    raise
                timeouts[organization_id] += 1
                log.warning("job_blocked_by_a_lock")
    return count


def _advance_job(pk: int, token: uuid.UUID, move: Callable) -> None:
    """Run a step and count its failures.

    If a locked row blocks the step, it is postponed and the lock timeout is raised.
    """
    if not _count_attempt(pk, token):
        _hand_over_after_failures(pk, token)
        return
    try:
        move(pk, token)
    except Exception as error:
        if is_lock_timeout(error):
            uncounted = Greatest(F("failed_steps") - 1, 0)  # 0 if the step was done in another slot
            _postpone_step(pk, token, BLOCKED_S, failed_steps=uncounted)
            raise
        log.exception("job_step_failed")
        _postpone_step(pk, token)
        _hand_over_after_failures(pk, token)
    else:  # usually the step has saved the job, including the count
        with limited_transaction():
            _step_of(pk, token).filter(failed_steps__gt=0).update(failed_steps=0)


def _step_of(job_id: int, token: uuid.UUID) -> QuerySet[Job]:
    """Select the job if `token` is its current step."""
    step: QuerySet[Job] = Job.objects.filter(
        pk=job_id, step_token=token, status=Job.Status.DISPATCHING, paused_at=None
    )
    return step


def _count_attempt(job_id: int, token: uuid.UUID) -> bool:
    """Count the step as failed until it is done, and commit.

    Return False if the step is over or has failed too often.
    """
    hopeful = _step_of(job_id, token).filter(failed_steps__lt=MAX_FAILURES)
    with limited_transaction():
        return bool(hopeful.update(failed_steps=F("failed_steps") + 1))


def _postpone_step(job_id: int, token: uuid.UUID, seconds: float = POSTPONE_S, **changes: Any) -> None:
    """Make the step due after `seconds`, with these further changes."""
    at = clock.now() + timedelta(seconds=seconds)
    with limited_transaction():
        _step_of(job_id, token).update(next_action_at=at, **changes)


def _hand_over_after_failures(job_id: int, token: uuid.UUID) -> None:
    """Hand the job to a dispatcher after three consecutive failures."""
    if not _step_of(job_id, token).filter(failed_steps__gte=MAX_FAILURES).exists():
        return
    try:
        apply_answers_before_closing(job_id)
        _hand_over(job_id, token)
    except Exception:  # retried later
        log.exception("failing_job_handover_failed", job=job_id)
        _postpone_step(job_id, token)


@transaction.atomic
def _hand_over(job_id: int, token: uuid.UUID) -> None:
    job = transitions.lock_job(job_id)
    if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != token:
        return
    for offer in transitions.live_offers(job):
        if apply_recorded_key(job, offer):
            return
    slots.withdraw_offers(job, Outcome.FAILED, "processing failed", SYSTEM)
    transitions.mark_pending(job, Job.PendingReason.FAILED, failures=job.failed_steps)
