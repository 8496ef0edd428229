"""Run the cascade: offer a dispatching job to the next technician, wait, or hand it to dispatchers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import OperationalError, transaction

from dispatch.capacity import account_outages
from dispatch.capacity.account_outages import Outage
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows, lock_waits
from dispatch.core.db.errors import is_lock_timeout
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.jobs import policies, rules, sql
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.rules import CascadePolicy
from dispatch.jobs.services import line_wakeups, ranking, sms, transitions
from dispatch.jobs.services.transitions import Waiting
from dispatch.jobs.sql import CandidateRow, DispatchReadiness, OfferRow
from dispatch.technicians import services as technicians
from dispatch.technicians.services import Nearby
from dispatch.telephony import services as telephony
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.models import Call

# Poll interval of a job that waits for a technician with another offer, unless it is woken earlier (seconds).
TECHNICIAN_POLL_S = 3.0
# Minimum time to place a call that is created just before the job's wait ends.
PLACE_WITHIN = timedelta(seconds=15)
# Poll interval of a job that waits for the provider; the account's circuit breaker decides (seconds).
PROVIDER_POLL_S = 3.0
# Outage of the account → the job's `waiting_for`, and its pending reason if the wait ends without success.
_OUTAGES = {
    Outage.NO_ANSWER: (Waiting.PROVIDER, Job.PendingReason.PROVIDER_DOWN),
    Outage.REFUSED: (Waiting.ACCOUNT, Job.PendingReason.ACCOUNT_REFUSED),
}
# Minimum and maximum delay before the next try to reserve a line (seconds).
LINE_POLL_S = (1.0, 15.0)
# Technicians whose rows another session had locked a moment ago, and the lock timeout for such a row (seconds).
_held = RecentlyBlocked(10.0)
HELD_WAIT_S = 0.01


@dataclass(frozen=True)
class _Step:
    """The result of one transaction. `again`: continue with the next candidate. `call`: the call to place."""

    again: bool = False
    call: Call | None = None


_DONE, _AGAIN = _Step(), _Step(again=True)


def offer_next(job_id: int, token: str | uuid.UUID, *, place: bool = True) -> None:
    """Offer the job to the next technician. Changes nothing if `token` is not the job's current step.

    Call it outside any transaction: each candidate is tried in a separate transaction, so that no two technicians
    are locked at once. With `place`, a thread of this process asks the provider to place the call; otherwise
    telephony's placer does.
    """
    busy: set[int] = set()
    while True:
        with transaction.atomic():
            step = _run_step(job_id, uuid.UUID(str(token)), busy)
        if not step.again:
            break
    if step.call is not None:
        fault_injection.crash_point("jobs.offer.committed")
        if place:
            telephony.place_soon(step.call)
            fault_injection.crash_point("jobs.offer.placed")


def _run_step(job_id: int, token: uuid.UUID, busy: set[int]) -> _Step:
    job = transitions.lock_job(job_id, "organization")
    now = clock.now()
    if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != token:
        return _DONE
    if job.waiting_for == Waiting.START and job.next_action_at and job.next_action_at > now:
        return _DONE  # waiting for the last offer's deadline
    readiness = sql.load_readiness(job, now)
    offers = readiness.offers
    if any(offer.status == Offer.Status.PENDING for offer in offers):
        return _DONE
    if (quiet_end := ranking.quiet_end_of(job, readiness.quiet)) is not None:
        return _wait_for_quiet_hours(job, quiet_end)
    if job.waiting_for == Waiting.QUIET_HOURS:
        return _start_after_quiet_hours(job, token)
    policy = policies.frozen_policy(job)
    candidates = {row.technician_id: row for row in readiness.candidates}
    waited = job.technician_wait_until is not None and now >= job.technician_wait_until
    set_aside = _set_aside(job, offers, now)
    step = ranking.next_step(
        job,
        policy,
        readiness.candidates,
        readiness,
        busy=busy | set_aside.keys(),
        may_wait=bool(set_aside) or (policy.technician_wait_s > 0 and not waited),
    )
    match step.kind:
        case "offer":
            assert step.technician_id is not None
            return _try_candidate(job, policy, readiness, candidates[step.technician_id], busy)
        case "wait" if set_aside:
            return _wait_for_provider(job, policy, readiness.pool, next(reversed(set_aside.values())))
        case "wait":
            return _wait_for_technician(job, policy)
        case "round":
            _begin_round(job, policy, readiness)
            busy.clear()
            return _AGAIN
        case "exhausted":
            ranking.end_cascade(job, readiness)
    return _DONE


def _begin_round(job: Job, policy: CascadePolicy, readiness: DispatchReadiness) -> None:
    """Begin the next round, and search its radius if that is wider."""
    widens = policy.widens_after(job.round - job.first_round + 1)
    job.round, job.technician_wait_until = job.round + 1, None
    facts = ranking.widen_search(job, policy, readiness) if widens else {}
    transitions.save_job(job)
    transitions.append_job_event(job, "job.round", round=job.round, rounds=policy.rounds, **facts)


def _try_candidate(
    job: Job, policy: CascadePolicy, readiness: DispatchReadiness, candidate: CandidateRow, busy: set[int]
) -> _Step:
    """Check the candidate's current eligibility, and offer them the job."""
    if job.line_wait_until is not None and clock.now() >= job.line_wait_until:
        last = readiness.offers[-1] if readiness.offers else None
        _give_up_waiting(job, policy, readiness.pool, last)
        return _DONE
    assert job.lat is not None
    assert job.lng is not None
    try:
        with lock_waits.short_wait(_lock_wait_s(candidate)):
            fitness = technicians.check_fitness(
                candidate.technician_id,
                job.lat,
                job.lng,
                radius_m=policies.search_radius(job),
                skill_ids=readiness.skills.required,
                organization=job.organization,
                lock=True,
            )
            preferences = policies.preferences_of(job, readiness.skills)
            fitness = ranking.describe_reason(job, policy, fitness, preferences)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        _held.add(candidate.technician_id)
        return _defer_candidate(candidate, "their record is locked by another session", busy)
    if fitness.verdict == "out":
        return _skip_candidate(job, candidate, fitness, fitness.reason)
    if fitness.verdict == "deferred":
        return _defer_candidate(candidate, fitness.reason, busy)
    pool = readiness.pool
    if pool is None or readiness.others_first:
        return _wait_for_line(job, policy, pool, LINE_POLL_S[0 if pool else 1])
    try:
        with transaction.atomic():
            offer, call = _make_offer(job, policy, pool, fitness, len(readiness.offers) + 1)
    except PhoneBusy:
        return _defer_candidate(candidate, "their phone is on another call", busy)
    except CallNotAllowed as refused:
        return _skip_candidate(job, candidate, fitness, str(refused))
    except NoLine as none:
        if none.reason in _OUTAGES:
            return _wait_for_provider(job, policy, pool, None)
        return _wait_for_line(job, policy, pool, none.retry_in_s)
    if (candidate.verdict, candidate.reason, candidate.distance_m) != (
        fitness.verdict,
        fitness.reason,
        fitness.distance_m,
    ):
        Candidate.objects.filter(pk=candidate.pk).update(
            verdict=fitness.verdict, reason=fitness.reason, distance_m=fitness.distance_m
        )
    transitions.wait_for(job, Waiting.LINE, offer.expires_at)
    transitions.save_job(job)
    return _Step(call=call)


def _lock_wait_s(candidate: CandidateRow) -> float:
    """Return how long to wait for the technician's row: briefly if it was locked a moment ago."""
    return HELD_WAIT_S if candidate.technician_id in _held else lock_waits.LOOP_S


def _make_offer(
    job: Job, policy: CascadePolicy, pool: DispatchPool, technician: Nearby, attempt: int
) -> tuple[Offer, Call]:
    """Create the Offer and its Call.

    The deadline starts when the provider accepts the call; until then `expires_at` is the latest moment that still
    allows an answer.
    """
    now = clock.now()
    if job.line_wait_until is None:
        job.line_wait_until = now + timedelta(seconds=policy.line_wait_s)
    offer = Offer(
        organization_id=job.organization_id,
        job=job,
        technician_id=technician.technician_id,
        attempt=attempt,
        round=job.round,
        distance_m=technician.distance_m,
        expires_at=job.line_wait_until + timedelta(seconds=policy.answer_timeout_s),
    )
    is_preferred = technician.technician_id == job.preferred_technician_id
    preferred: dict[str, Any] = {"preferred": True} if is_preferred else {}
    event = transitions.event_of_offer(
        offer,
        "offer.made",
        technician=technician.name,
        round=job.round,
        distance_m=technician.distance_m,
        **preferred,
    )
    fast_rows.insert_row(offer, event)
    if not technicians.begin_offer(technician.technician_id, offer.pk):
        raise PhoneBusy
    call = telephony.create_call(
        organization=job.organization,
        purpose="offer",
        subject_id=offer.pk,
        attempt=1,
        to_phone=technician.phone,
        pool=pool,
        ring_timeout_s=policy.ring_timeout_s,
        time_limit_s=settings.CALL_TIME_LIMIT_S,
        place_by=max(job.line_wait_until, now + PLACE_WITHIN),
        context={"job_id": job.pk},
        priority=job.priority,
    )
    if policy.offer_by_text:
        sms.send_offer(offer, job, to_phone=technician.phone, pool=pool)
    return offer, call


def _skip_candidate(job: Job, candidate: CandidateRow, technician: Nearby, reason: str) -> _Step:
    """Skip a candidate who is no longer eligible for this round, and append `job.skipped`."""
    Candidate.objects.filter(pk=candidate.pk).update(
        verdict=Candidate.Verdict.OUT, reason=reason[:160], skipped_round=job.round
    )
    transitions.append_job_event(
        job,
        "job.skipped",
        technician_id=technician.technician_id,
        technician=technician.name,
        reason=reason,
    )
    return _AGAIN


def _defer_candidate(candidate: CandidateRow, reason: str, busy: set[int]) -> _Step:
    """Defer a candidate who has another pending offer."""
    Candidate.objects.filter(pk=candidate.pk).update(verdict=Candidate.Verdict.DEFERRED, reason=reason[:160])
    busy.add(candidate.technician_id)
    return _AGAIN


def _wait_for_technician(job: Job, policy: CascadePolicy) -> _Step:
    job.line_wait_until = None
    if job.technician_wait_until is None:
        job.technician_wait_until = transitions.seconds_from_now(policy.technician_wait_s)
    at = min(transitions.seconds_from_now(TECHNICIAN_POLL_S), job.technician_wait_until)
    _wait_for(job, Waiting.TECHNICIAN, at, job.technician_wait_until)
    return _DONE


def _wait_for_line(job: Job, policy: CascadePolicy, pool: DispatchPool | None, retry_in_s: float) -> _Step:
    job.line_pool = pool
    if job.line_wait_until is None:
        job.line_wait_until = transitions.seconds_from_now(policy.line_wait_s)
    pause_s = min(max(retry_in_s, LINE_POLL_S[0]), LINE_POLL_S[1])
    at = min(transitions.seconds_from_now(pause_s), job.line_wait_until)
    _wait_for(job, Waiting.LINE, at, job.line_wait_until)
    line_wakeups.mark_waiting()
    return _DONE


def _wait_for_quiet_hours(job: Job, until: datetime) -> _Step:
    if job.waiting_for == Waiting.QUIET_HOURS and job.next_action_at == until:
        return _DONE
    ranking.hold_for_quiet_hours(job, until)
    transitions.save_job(job)
    ranking.announce_quiet_hours(job)
    return _DONE


def _start_after_quiet_hours(job: Job, token: uuid.UUID) -> _Step:
    """Rank afresh after quiet hours: others are on duty now. Earlier answers still count."""
    ranking.begin_dispatch(job)
    if job.status != Job.Status.DISPATCHING:
        return _DONE
    job.step_token = token
    transitions.save_job(job, visible=False)
    return _AGAIN


def _set_aside(job: Job, offers: list[OfferRow], now: datetime) -> dict[int, OfferRow]:
    """Return technicians whose offer was just withdrawn because of the provider: id → offer, latest last.

    Other technicians are called first. An offer that was withdrawn because of an outage sets nobody aside when the
    outage is over.
    """
    since = now - timedelta(seconds=rules.SET_ASIDE_S)
    withdrawn = [
        offer
        for offer in offers
        if offer.round >= job.first_round
        and offer.outcome in rules.SET_ASIDE
        and offer.settled_at is not None
        and offer.settled_at > since
    ]
    ended_at = account_outages.last_end(job.organization_id) if withdrawn else None
    return {
        offer.technician_id: offer
        for offer in withdrawn
        if offer.outcome != rules.Outcome.PROVIDER_SILENT or ended_at is None or offer.created_at > ended_at
    }


def _wait_for_provider(job: Job, policy: CascadePolicy, pool: DispatchPool | None, last: OfferRow | None) -> _Step:
    """Wait for the provider: nobody can be called. The ranking is kept. `last`: the withdrawn offer."""
    if job.line_wait_until is None:
        job.line_wait_until = transitions.seconds_from_now(policy.line_wait_s)
    if clock.now() >= job.line_wait_until:
        _give_up_waiting(job, policy, pool, last)
        return _DONE
    outage, _ = _outage(pool, last)
    waiting_for = _OUTAGES[outage][0] if outage else Waiting.PROVIDER
    at = min(transitions.seconds_from_now(PROVIDER_POLL_S), job.line_wait_until)
    _wait_for(job, waiting_for, at, job.line_wait_until)
    return _DONE


def _give_up_waiting(job: Job, policy: CascadePolicy, pool: DispatchPool | None, last: OfferRow | None) -> None:
    """Make the job pending after its wait for a line, and record the cause as the reason."""
    outage, words = _outage(pool, last)
    if outage is None:
        transitions.mark_pending(job, Job.PendingReason.NO_LINE, waited_s=policy.line_wait_s)
    else:
        transitions.mark_pending(job, _OUTAGES[outage][1], waited_s=policy.line_wait_s, reason_text=words)


def _outage(pool: DispatchPool | None, last: OfferRow | None) -> tuple[Outage | None, str]:
    """Return the outage of the pool's accounts and a text for dispatchers.

    Without such an outage, return the reason for the last withdrawal.
    """
    account = account_outages.outage_of_pool(pool.pk) if pool else None
    if account is not None:
        return Outage(account.outage), account_outages.describe(account)
    if last is None or last.outcome not in rules.WITHDRAWN:
        return None, ""
    if last.outcome == rules.Outcome.PROVIDER_SILENT:
        return Outage.NO_ANSWER, account_outages.DESCRIPTIONS[Outage.NO_ANSWER]
    return Outage.REFUSED, last.reason[:1].upper() + last.reason[1:]


def _wait_for(job: Job, waiting_for: Waiting, at: datetime, until: datetime) -> None:
    """Make the job wait, and keep the step token because a poll is not a new step."""
    new = job.waiting_for != waiting_for
    transitions.wait_for(job, waiting_for, at, new_token=False)
    transitions.save_job(job, visible=new)
    if new:
        transitions.append_job_event(job, "job.waiting", waiting_for=str(waiting_for), until=until.isoformat())
