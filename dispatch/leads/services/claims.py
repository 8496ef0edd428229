"""Claim ready leads, a batch per transaction: turn each into a call, defer it, or end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from dispatch.capacity import bulk as capacity
from dispatch.capacity.bulk import PoolLimits
from dispatch.capacity.models import ProviderAccount
from dispatch.core import fault_injection
from dispatch.core.db.prepared import pipeline
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.leads import counters, redis_queue, sql
from dispatch.leads.redis_queue import PURPOSE, ClaimOutcome, Reservation
from dispatch.leads.rules.retries import Verdict
from dispatch.leads.services import claim_failures
from dispatch.leads.services.claim_batches import STOPPED_S, ClaimBatch, ClaimResult, PrecheckRequest
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

ACCOUNTS_S = 1.0
# How often a claimer checks whether a batch was committed, while the database is unavailable (seconds).
COMMIT_CHECK_S = 0.2


def no_claims(claimed: ClaimResult) -> None:
    """Ignore the claims, for callers that only need the return value."""


def claim_leads(
    worker: str, pool_id: int, most: int, committed: Callable[[ClaimResult], None] = no_claims
) -> ClaimResult:
    """Reserve up to `most` ready leads of a pool with their lines, and claim those that are eligible.

    `committed` is called with the result as soon as it is committed, before Redis is updated.

    Call it outside any transaction. Raises redis_queue.NotReady, any of REDIS_ERRORS, and DatabaseError; the
    reserved leads are then requeued, or ready again when their lease ends. A lead that makes the claim fail is
    deferred alone.
    """
    limits = capacity.load_pool_limits(pool_id)
    if limits is None:
        return ClaimResult(why="pool_paused", wait_s=STOPPED_S)
    _pending.flush(worker)
    if telephony.spend_hold(limits.organization_id, PURPOSE):
        return ClaimResult(why=telephony.SPEND_CAP, wait_s=STOPPED_S)
    with counters.processing.time():
        reservations, why, wait_s = _reserve(worker, most, limits)
        fault_injection.crash_point("leads.claim.taken")
        if why not in ("", "empty"):
            counters.line_waits.labels(why).inc()
        if not reservations:
            return ClaimResult(why=why, wait_s=wait_s)
        claimed = claim_reservations(worker, limits, reservations, committed=committed)
        claimed.why, claimed.wait_s = claimed.why or why, claimed.wait_s or wait_s
        return claimed


def _reserve(worker: str, most: int, limits: PoolLimits) -> tuple[list[Reservation], str, float]:
    """Reserve as `redis_queue.reserve` does.

    A batch whose reply was lost is requested again by the next claim of its pool, so that its leads need not wait
    for the end of its lease.
    """
    batch = _unanswered.pop((worker, limits.pool_id), None) or redis_queue.new_batch(worker)
    try:
        return redis_queue.reserve(batch, most, limits)
    except REDIS_ERRORS:
        _unanswered[worker, limits.pool_id] = batch
        raise


_unanswered: dict[tuple[str, int], str] = {}


def claim_reservations(
    worker: str,
    limits: PoolLimits,
    reservations: Sequence[Reservation],
    answers: Mapping[int, Verdict] | None = None,
    committed: Callable[[ClaimResult], None] = no_claims,
) -> ClaimResult:
    """Check the eligibility of reservations, and claim the eligible leads.

    `answers`: the results of pre-checks that were made before, by lead.
    """
    claimed = ClaimResult(taken=len(reservations))
    try:
        # before anything is committed, because a call could not be requested if its account cannot be read
        claimed.accounts = _accounts.load({number.account_id for number in limits.numbers.values()})
    except Exception:
        requeue_reservations(worker, reservations)
        raise
    waiting = [list(reservations)]
    while waiting:
        part = waiting.pop()
        batch = ClaimBatch(worker, limits, part, answers or {})
        batch.claimed.accounts = claimed.accounts
        is_written = False
        try:
            with transaction.atomic():
                with pipeline():
                    batch.claim()
                fault_injection.crash_point("leads.claim.before_commit")
                is_written = True
        except Exception as error:
            if is_written and _is_committed(batch):
                log.warning("leads_commit_reply_lost", leads=len(part), error=str(error).strip())
            elif claim_failures.is_outage(error):
                requeue_reservations(worker, [*part, *chain.from_iterable(waiting)])
                if claimed.calls or claimed.questions:  # they are committed, so they must be requested
                    log.warning("leads_claimed_in_part", error=str(error).strip())
                    return claimed
                raise
            else:
                if len(part) == 1:
                    _pending.send(worker, [claim_failures.defer(part[0], error)])
                else:  # so that only the lead that is the cause fails
                    log.warning("leads_claim_split", leads=len(part), error=str(error).strip())
                    half = len(part) // 2
                    waiting += [part[half:], part[:half]]
                continue
        fault_injection.crash_point("leads.claim.committed")
        committed(batch.claimed)
        _pending.send(worker, batch.outcomes.values())
        fault_injection.crash_point("leads.claim.settled")
        claimed.add(batch.claimed)
    return claimed


def _is_committed(batch: ClaimBatch) -> bool:
    """Return whether the calls of a batch were committed although the commit failed: its reply was lost.

    Only this process may request them then. Waits for the locks of the leads, which an unfinished commit holds, at
    most until the calls can no longer be requested.
    """
    call_ids = [request.call_id for request in batch.claimed.calls]
    deadline = time.monotonic() + settings.CALL_SEND_WINDOW_S
    while call_ids:
        try:
            with transaction.atomic():
                sql.fetch_all(sql.LOCK_AND_WAIT, {"ids": sql.integers(batch.reservations)})
                return Call.objects.filter(pk__in=call_ids).exists()
        except DatabaseError as error:
            if time.monotonic() > deadline:
                log.warning("leads_commit_unknown", calls=len(call_ids), error=str(error).strip())
                break
            time.sleep(COMMIT_CHECK_S)
    return False


def claim_answered(worker: str, answered: Sequence[tuple[PrecheckRequest, Verdict]]) -> ClaimResult:
    """Claim leads of one pool whose pre-checks were answered.

    Their eligibility is checked again, because time has passed.
    """
    reservations = [question.reservation for question, _ in answered]
    try:
        limits = capacity.load_pool_limits(answered[0][0].campaign.pool_id)
        is_allowed = limits is not None and all(
            limits.allows(PURPOSE, *reservation[4:7]) for reservation in reservations
        )
    except Exception:
        requeue_reservations(worker, reservations)
        raise
    if limits is None or not is_allowed:
        requeue_reservations(worker, reservations)
        return ClaimResult(why="pool_paused")
    return claim_reservations(
        worker, limits, reservations, {question.lead.id: verdict for question, verdict in answered}
    )


def requeue_reservations(worker: str, reservations: Iterable[Reservation]) -> None:
    """Requeue reservations and release their lines."""
    _pending.send(
        worker,
        [
            ClaimOutcome(reservation.batch, reservation.member, "again", reservation.due_ms, reservation.member)
            for reservation in reservations
        ],
    )


class _PendingRedisUpdates:
    """Updates that Redis missed while it was unavailable. Each dialer sends them before it reserves more leads.

    An update after the end of its batch's lease changes nothing.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, list[ClaimOutcome]] = {}
        self._lock = threading.Lock()

    def send(self, worker: str, outcomes: Iterable[ClaimOutcome]) -> None:
        with self._lock:
            pending = [*self._outcomes.pop(worker, ()), *outcomes]
        try:
            redis_queue.complete_reservations(pending)
        except redis_queue.UNAVAILABLE as error:
            log.warning("redis_batch_update_deferred", leads=len(pending), error=str(error))
            with self._lock:
                self._outcomes.setdefault(worker, []).extend(pending)

    def flush(self, worker: str) -> None:
        if self._outcomes.get(worker):
            self.send(worker, ())

    def reset(self) -> None:
        with self._lock:
            self._outcomes.clear()


_pending = _PendingRedisUpdates()


class _AccountCache:
    """A cache of accounts with their credentials, refreshed every second."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[float, ProviderAccount]] = {}

    def load(self, ids: set[int]) -> dict[int, ProviderAccount]:
        now = time.monotonic()
        stale = [pk for pk in ids if pk not in self._cached or now - self._cached[pk][0] > ACCOUNTS_S]
        if stale:
            self._cached |= {pk: (now, row) for pk, row in ProviderAccount.objects.in_bulk(stale).items()}
        return {pk: self._cached[pk][1] for pk in ids}

    def reset(self) -> None:
        self._cached.clear()


_accounts = _AccountCache()


def reset() -> None:
    """Reset pending updates and cached accounts (tests)."""
    _pending.reset()
    _accounts.reset()
    _unanswered.clear()
