"""Run the cascade: offer a dispatching job to the next technicians, wait, or hand it to dispatchers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import QuerySet

from dispatch.capacity import account_outages
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows, lock_waits, prepared
from dispatch.core.db.errors import is_lock_timeout
from dispatch.core.db.instances import new_instance
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.jobs import policies, rules, sql, technician_messages
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.rules import CascadePolicy
from dispatch.jobs.services import ranking, slots, sms, transitions, travel, waits
from dispatch.jobs.services.transitions import Waiting
from dispatch.jobs.services.waits import CascadeState
from dispatch.jobs.sql import CandidateRow, DispatchReadiness, OfferRow
from dispatch.technicians import services as technicians
from dispatch.technicians.services import Nearby
from dispatch.telephony import services as telephony
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.models import Call

log = structlog.get_logger(__name__)

# Minimum time to place a call that is created just before the job's wait ends.
PLACE_WITHIN = timedelta(seconds=15)
# Technicians whose rows another session had locked a moment ago, and the lock timeout for such a row (seconds).
_held = RecentlyBlocked(10.0)
HELD_WAIT_S = 0.01
# Technicians whom a try could not call a moment ago, although they have no other offer: their phone was on another
# call, or their row was locked. All jobs that wait for them would be tried every second.
_unavailable = RecentlyBlocked(5.0)


# Who can't be called at the moment: technician's id → whether it is because another session has locked their row.
Busy = dict[int, bool]


@dataclass(frozen=True)
class _Step:
    """The result of one transaction.

    `again`: continue with the next candidate. `call`: the call to place. `token`: the job's new step token.
    `ranks`: nothing was changed, since the step ranks this job within `radius_m` (None: of a new dispatch), and
    the drives should be known before.
    """

    again: bool = False
    call: Call | None = None
    token: uuid.UUID | None = None
    ranks: Job | None = None
    radius_m: int | None = None


_DONE, _AGAIN = _Step(), _Step(again=True)


@dataclass(frozen=True)
class FirstStep:
    """What `make_first_offer` did, and who can't be called at the moment."""

    step: _Step
    busy: Busy


def unavailable_technicians() -> set[int]:
    """Return the technicians for whom waiting jobs are tried only when due, although they have no other offer."""
    return _unavailable.keys()


def make_first_offer(job: Job, readiness: DispatchReadiness) -> FirstStep:
    """Take the first step of a dispatching job that the running transaction has created and ranked.

    `offer_next` goes on from there after the commit.
    """
    busy: Busy = {}
    return FirstStep(_take_step(job, readiness, busy, clock.now(), may_load=False), busy)


def offer_next(job_id: int, token: str | uuid.UUID, *, place: bool = True, first: FirstStep | None = None) -> None:
    """Offer the job to the next technician, or to several at once if the policy says so for its priority.

    Changes nothing if `token` is not the job's current step. Call it outside any transaction: each candidate is
    tried in a separate transaction, so that no two technicians are locked at once. With `place`, threads of this
    process ask the provider to place the calls; otherwise telephony's placer does. Only with `place`, the OSRM
    server is asked before a ranking, between two transactions. `first`: the step that is already committed.
    """
    busy: Busy = first.busy if first else {}
    may_load = place
    calls: list[Call] = []
    current = uuid.UUID(str(token))
    while True:
        try:
            if first is not None:
                step, first = first.step, None
            else:
                step = _commit_step(job_id, current, busy, may_load=may_load)
        except Exception as error:
            if not calls:
                raise
            log.warning("job_not_offered_further", job=job_id, error=str(error).strip())  # the auditor tries again
            break
        if step.ranks is not None:
            travel.load_road_times(step.ranks, step.radius_m)
            may_load = False
            continue
        if step.call is not None:
            calls.append(step.call)
            fault_injection.crash_point("jobs.offer.committed")
        if not step.again:
            break
        current = step.token or current
    if place:
        for call in calls:
            telephony.place_soon(call)
            fault_injection.crash_point("jobs.offer.placed")


def _commit_step(job_id: int, token: uuid.UUID, busy: Busy, *, may_load: bool) -> _Step:
    """Take the job's next step in a transaction."""
    with lock_waits.limited_transaction(defers_fsync=True):
        job = transitions.lock_job(job_id, "organization")
        now = clock.now()
        if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != token:
            return _DONE
        if job.waiting_for == Waiting.START and job.next_action_at and job.next_action_at > now:
            return _DONE  # waiting for the last offer's deadline
        return _take_step(job, sql.load_readiness(job, now), busy, now, may_load=may_load)


def _take_step(job: Job, readiness: DispatchReadiness, busy: Busy, now: datetime, *, may_load: bool) -> _Step:
    """Take the next step of a job that this transaction has locked or created."""
    offers = readiness.offers
    policy = policies.frozen_policy(job)
    in_use = rules.slots_of(offers, slots.offers_wanted(job), now)
    pending = [offer for offer in offers if offer.status == Offer.Status.PENDING]
    state = CascadeState(policy, readiness, in_use, pending)
    if in_use.free is None:
        return _wait_for_slot(job, state)
    if (hold := ranking.hold_of(job, readiness.quiet)) is not None:
        waits.wait_for_hold(job, hold)
        return _DONE
    if job.waiting_for in ranking.HELD:
        if may_load and travel.is_loadable(job):
            return _Step(ranks=job)
        return _start_after_hold(job)
    candidates = {row.technician_id: row for row in readiness.candidates}
    waited = job.technician_wait_until is not None and now >= job.technician_wait_until
    set_aside = _set_aside(job, readiness.pool, offers, now)
    step = ranking.next_step(
        job,
        policy,
        readiness.candidates,
        readiness,
        busy=busy.keys() | set_aside.keys(),
        may_wait=bool(set_aside) or (policy.technician_wait_s > 0 and not waited),
    )
    if any(busy.values()) and (step.kind == "round" or (step.kind == "exhausted" and not pending)):
        raise ranking.rows_are_locked()  # the round ends without them, although nobody knows whether they are free
    match step.kind:
        case "offer":
            assert step.technician_id is not None
            others = [candidates[technician_id] for technician_id in step.others]
            return _try_candidate(job, state, candidates[step.technician_id], others, busy)
        case "wait" if set_aside:
            waits.wait_for_provider(job, state, next(reversed(set_aside.values())))
        case "wait":
            waits.wait_for_technician(job, state)
        case "round":
            nth = job.round - job.first_round + 1
            if may_load and policy.widens_after(nth) and travel.is_loadable(job):
                return _Step(ranks=job, radius_m=policy.radius_in_round(nth + 1))
            _begin_round(job, policy, readiness)
            busy.clear()
            return _AGAIN
        case "exhausted" if pending:
            slots.wait_for_others(job, pending, in_use)
        case "exhausted":
            ranking.end_cascade(job, readiness)
    return _DONE


def _wait_for_slot(job: Job, state: CascadeState) -> _Step:
    """Wait: enough technicians are being called, or the slots wait after an answer as the policy says."""
    if state.pending:
        slots.wait_for_others(job, state.pending, state.slots)
    elif (free_at := state.slots.next_free_at) is not None and job.next_action_at != free_at:
        transitions.wait_until(job, free_at)
        transitions.save_job(job, visible=False)
    return _DONE


def _begin_round(job: Job, policy: CascadePolicy, readiness: DispatchReadiness) -> None:
    """Begin the next round, and search its radius if that is wider."""
    widens = policy.widens_after(job.round - job.first_round + 1)
    job.round, job.technician_wait_until = job.round + 1, None
    facts = ranking.widen_search(job, policy, readiness) if widens else {}
    transitions.save_job(job)
    transitions.append_job_event(job, "job.round", round=job.round, rounds=policy.rounds, **facts)


def _try_candidate(
    job: Job, state: CascadeState, candidate: CandidateRow, others: list[CandidateRow], busy: Busy
) -> _Step:
    """Check the candidate's current eligibility, and offer them the job. `others` come after them."""
    policy, readiness = state.policy, state.readiness
    if not state.pending and job.line_wait_until is not None and clock.now() >= job.line_wait_until:
        last = readiness.offers[-1] if readiness.offers else None
        waits.give_up_waiting(job, state, last)
        return _DONE
    try:
        fitness, offer_id = _lock_candidate(job, readiness, candidate)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        _held.add(candidate.technician_id)
        _unavailable.add(candidate.technician_id)
        reason = "another change to this technician was in progress"
        return _defer_candidate(job, candidate, reason, busy, is_locked=True)
    fitness = ranking.describe_reason(job, policy, fitness, policies.preferences_of(job, readiness.skills))
    if fitness.verdict == "out":
        return _skip_candidate(job, candidate, fitness, fitness.reason)
    if fitness.verdict == "deferred":
        _defer_busy(job, readiness, policy, others, busy)
        return _defer_candidate(job, candidate, fitness.reason, busy)
    pool = readiness.pool
    if pool is None or readiness.others_first:
        waits.wait_for_line(job, state, waits.LINE_POLL_S[0 if pool else 1])
        return _DONE
    try:
        with transaction.atomic():
            offer, call = _make_offer(job, state, pool, fitness, offer_id())
    except PhoneBusy:
        _unavailable.add(candidate.technician_id)
        return _defer_candidate(job, candidate, "their phone is on another call", busy)
    except CallNotAllowed as refused:
        return _skip_candidate(job, candidate, fitness, str(refused))
    except NoLine as none:
        if none.reason in waits.REASONS:
            waits.wait_for_provider(job, state, None)
        else:
            waits.wait_for_line(job, state, none.retry_in_s)
        return _DONE
    technician_messages.report(offer.technician_id, technician_messages.OFFER, offer.pk, until=offer.expires_at)
    if policy.offer_by_text:
        sms.send_offer(offer, job, to_phone=fitness.phone, pool=pool)
    seen = {name: getattr(fitness, name) for name in ("verdict", "reason", "distance_m", "travel_s")}
    if any(getattr(candidate, name) != value for name, value in seen.items()):
        _candidacy(job, candidate).update(**seen)
    is_more_wanted = state.slots.wanted > 1
    if not state.pending:
        job.fill_at = clock.now() if is_more_wanted else None
        transitions.wait_for(job, Waiting.LINE, job.fill_at or offer.expires_at)
    transitions.save_job(job)
    return _Step(again=is_more_wanted, call=call, token=job.step_token)


def _lock_candidate(
    job: Job, readiness: DispatchReadiness, candidate: CandidateRow
) -> tuple[Nearby, Callable[[], int]]:
    """Lock the candidate's row. Return their current eligibility, and a function for the id of an offer to them.

    Waits only for a lock of another session.
    """
    wanted = {**_wanted(job, readiness), "ranked": (candidate.distance_m, candidate.travel_s)}
    with prepared.pipeline():
        offer_id = fast_rows.reserve_pk(Offer)
        found = technicians.lock_unlocked(candidate.technician_id, **wanted)
    if found is None:
        with lock_waits.short_wait(_lock_wait_s(candidate)):
            found = technicians.check_fitness(candidate.technician_id, lock=True, **wanted)
    return found, offer_id


def _wanted(job: Job, readiness: DispatchReadiness) -> dict[str, Any]:
    """Return where and when the job is, and what it requires of a technician."""
    assert job.lat is not None
    assert job.lng is not None
    return {
        "lat": job.lat, "lng": job.lng, "radius_m": policies.search_radius(job),
        "skill_ids": readiness.skills.required, "organization": job.organization,
        "during": policies.time_of(job, readiness.skills.minutes),
    }  # fmt: skip


def _lock_wait_s(candidate: CandidateRow) -> float:
    """Return how long to wait for the technician's row: briefly if it was locked a moment ago."""
    return HELD_WAIT_S if candidate.technician_id in _held else lock_waits.LOOP_S


def _make_offer(
    job: Job, state: CascadeState, pool: DispatchPool, technician: Nearby, offer_id: int
) -> tuple[Offer, Call]:
    """Create the Offer with this id, and its Call.

    The deadline starts when the provider accepts the call; until then `expires_at` is the latest moment that still
    allows an answer.
    """
    now, policy = clock.now(), state.policy
    line_until = now + timedelta(seconds=policy.line_wait_s)
    if not state.pending:
        line_until = job.line_wait_until = job.line_wait_until or line_until
    assert state.slots.free is not None
    offer = new_instance(
        Offer,
        id=offer_id,
        organization_id=job.organization_id,
        job=job,
        technician_id=technician.technician_id,
        attempt=len(state.readiness.offers) + 1,
        slot=state.slots.free,
        round=job.round,
        distance_m=technician.distance_m,
        expires_at=line_until + timedelta(seconds=policy.answer_timeout_s),
    )
    is_preferred = technician.technician_id == job.preferred_technician_id
    why: dict[str, Any] = {"preferred": True} if is_preferred else {}
    if technician.travel_s is not None:
        why["travel_s"] = technician.travel_s
    event = transitions.event_of_offer(
        offer,
        "offer.made",
        technician=technician.name,
        round=job.round,
        distance_m=technician.distance_m,
        **why,
    )
    fast_rows.insert_row(offer, event)
    technicians.begin_offer(technician.technician_id, offer.pk)
    call = telephony.create_call(
        organization=job.organization,
        purpose="offer",
        subject_id=offer.pk,
        attempt=1,
        to_phone=technician.phone,
        pool=pool,
        ring_timeout_s=policy.ring_timeout_s,
        time_limit_s=settings.CALL_TIME_LIMIT_S,
        place_by=max(line_until, now + PLACE_WITHIN),
        context={"job_id": job.pk},
        priority=job.priority,
        waiter=f"job:{job.pk}",
    )
    return offer, call


def _candidacy(job: Job, candidate: CandidateRow) -> QuerySet[Candidate]:
    return Candidate.objects.filter(job_id=job.pk, technician_id=candidate.technician_id)


def _skip_candidate(job: Job, candidate: CandidateRow, technician: Nearby, reason: str) -> _Step:
    """Skip a candidate who is no longer eligible for this round, and append `job.skipped`."""
    _candidacy(job, candidate).update(verdict=Candidate.Verdict.OUT, reason=reason[:160], skipped_round=job.round)
    transitions.append_job_event(
        job,
        "job.skipped",
        technician_id=technician.technician_id,
        technician=technician.name,
        reason=reason,
    )
    return _AGAIN


def _defer_candidate(
    job: Job, candidate: CandidateRow, reason: str, busy: Busy, *, is_locked: bool = False
) -> _Step:
    """Defer a candidate who has another pending offer or can't be called at the moment."""
    sql.defer_candidates(job, {candidate.technician_id: reason[:160]})
    busy[candidate.technician_id] = is_locked
    return _AGAIN


def _defer_busy(
    job: Job, readiness: DispatchReadiness, policy: CascadePolicy, others: list[CandidateRow], busy: Busy
) -> None:
    """Defer all others who have another offer now, so that a job does not lock each of them when all are busy."""
    if not others:
        return
    ranked = {row.technician_id: (row.distance_m, row.travel_s) for row in others}
    found = technicians.find_busy(ranked, **_wanted(job, readiness))
    preferences = policies.preferences_of(job, readiness.skills)
    reasons = {one.technician_id: ranking.describe_reason(job, policy, one, preferences).reason for one in found}
    before = {row.technician_id: row for row in others}
    changed = {
        technician_id: reason
        for technician_id, reason in reasons.items()
        if (before[technician_id].verdict, before[technician_id].reason) != (Candidate.Verdict.DEFERRED, reason)
    }
    sql.defer_candidates(job, changed)
    busy.update(dict.fromkeys(reasons, False))


def _start_after_hold(job: Job) -> _Step:
    """Rank afresh when the job is no longer held back: others are on duty now. Earlier answers still count."""
    token = job.step_token
    ranking.begin_dispatch(job)
    if job.status != Job.Status.DISPATCHING:
        return _DONE
    job.step_token = token
    transitions.save_job(job, visible=False)
    return _AGAIN


def _set_aside(job: Job, pool: DispatchPool | None, offers: list[OfferRow], now: datetime) -> dict[int, OfferRow]:
    """Return technicians whose offer was just withdrawn because of the provider: id → offer, latest last.

    Other technicians are called first. An offer that was withdrawn because of an outage sets nobody aside when the
    outage is over, or when calls are placed from the pool's fallback.
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
    if withdrawn and pool is not None:
        ended_at = account_outages.switched_at(pool.pk) or ended_at
    return {
        offer.technician_id: offer
        for offer in withdrawn
        if offer.outcome != rules.Outcome.PROVIDER_SILENT or ended_at is None or offer.created_at > ended_at
    }
