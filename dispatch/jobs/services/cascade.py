"""Whose turn it is: offers a dispatching job to the next technician, or waits, or gives up."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock, faults, rows
from dispatch.jobs import line_waiters, policies, rules, sql
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.rules import CascadePolicy
from dispatch.jobs.services import state, texts
from dispatch.jobs.services.state import Waiting
from dispatch.jobs.sql import CandidateRow, Standing
from dispatch.technicians import services as technicians
from dispatch.technicians.services import Nearby
from dispatch.telephony import services as telephony
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy

# How soon a job that waits for a technician on another offer looks again, if nobody wakes it (seconds).
TECHNICIAN_POLL_S = 3.0
# A line is asked for again no sooner and no later than this, whatever the capacity says (seconds).
LINE_POLL_S = (1.0, 15.0)


@dataclass(frozen=True)
class _Step:
    """One transaction's worth: `again` looks at the next candidate, `call_id` is to be placed."""

    again: bool = False
    call_id: int | None = None


_DONE, _AGAIN = _Step(), _Step(again=True)


def offer_next(job_id: int, token: str | uuid.UUID, *, place: bool = True) -> None:
    """Offers the job to whoever's turn it is; nothing when `token` is not the job's current step.

    Call it outside any transaction: each candidate looked at is one of its own, so that no two technicians are
    locked at once. With `place` the provider is asked right here (seconds); without, telephony's placer does."""
    busy: set[int] = set()
    while True:
        with transaction.atomic():
            step = _one_step(job_id, uuid.UUID(str(token)), busy)
        if not step.again:
            break
    if step.call_id is not None:
        faults.point("jobs.offer.committed")
        if place:
            telephony.place(step.call_id)
            faults.point("jobs.offer.placed")


def _one_step(job_id: int, token: uuid.UUID, busy: set[int]) -> _Step:
    job = state.lock_job(job_id, "organization")
    now = clock.now()
    if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != token:
        return _DONE
    if job.waiting_for == Waiting.START and job.next_action_at and job.next_action_at > now:
        return _DONE  # waiting out the last offer's time
    how = sql.standing(job, now)
    offers = how.offers
    if any(offer.status == Offer.Status.PENDING for offer in offers):
        return _DONE
    policy = policies.frozen(job)
    candidates = {row.technician_id: row for row in how.candidates}
    waited = job.technician_wait_until is not None and now >= job.technician_wait_until
    step = rules.next_step(
        [rules.CandidateRow(c.technician_id, c.rank, c.verdict, c.skipped_round) for c in candidates.values()],
        [rules.OfferRow(offer.technician_id, offer.round, offer.outcome) for offer in offers],
        policy=policy,
        round_=job.round,
        first_round=job.first_round,
        busy=busy,
        may_wait=policy.technician_wait_s > 0 and not waited,
        not_again=job.not_again,
    )
    match step.kind:
        case "offer":
            assert step.technician_id is not None
            return _try(job, policy, how, candidates[step.technician_id], busy)
        case "wait":
            return _wait_for_technician(job, policy)
        case "round":
            job.round, job.technician_wait_until = job.round + 1, None
            state.save(job)
            state.note(job, "job.round", round=job.round, rounds=policy.rounds)
            busy.clear()
            return _AGAIN
        case "exhausted":
            state.give_up(job, Job.PendingReason.EXHAUSTED, offers=len(offers))
    return _DONE


def _try(job: Job, policy: CascadePolicy, how: Standing, candidate: CandidateRow, busy: set[int]) -> _Step:
    """Checks the candidate once more, as they are now, and offers them the job."""
    if job.line_wait_until is not None and clock.now() >= job.line_wait_until:
        state.give_up(job, Job.PendingReason.NO_LINE, waited_s=policy.line_wait_s)
        return _DONE
    assert job.lat is not None
    assert job.lng is not None
    one = technicians.fitness(
        candidate.technician_id,
        job.lat,
        job.lng,
        radius_m=policy.radius_m,
        skill_ids=how.skills,
        organization=job.organization,
        lock=True,
    )
    if one.verdict == "out":
        return _skip(job, candidate, one, one.reason)
    if one.verdict == "deferred":
        return _defer(candidate, one.reason, busy)
    pool = how.pool
    if pool is None or how.others_first:
        return _wait_for_line(job, policy, pool, LINE_POLL_S[0 if pool else 1])
    try:
        with transaction.atomic():
            offer, call_id = _make_offer(job, policy, pool, one, len(how.offers) + 1)
    except PhoneBusy:
        return _defer(candidate, "their phone is in another call", busy)
    except CallNotAllowed as refused:
        return _skip(job, candidate, one, str(refused))
    except NoLine as none:
        return _wait_for_line(job, policy, pool, none.retry_in_s)
    if (candidate.verdict, candidate.reason, candidate.distance_m) != (one.verdict, one.reason, one.distance_m):
        Candidate.objects.filter(pk=candidate.pk).update(
            verdict=one.verdict, reason=one.reason, distance_m=one.distance_m
        )
    state.wait_for(job, Waiting.LINE, offer.expires_at)
    state.save(job)
    return _Step(call_id=call_id)


def _make_offer(
    job: Job, policy: CascadePolicy, pool: DispatchPool, one: Nearby, attempt: int
) -> tuple[Offer, int]:
    """The Offer and its Call. The offer's clock starts when the provider takes the call; until then `expires_at`
    is the latest moment at which that could end well."""
    now = clock.now()
    if job.line_wait_until is None:
        job.line_wait_until = now + timedelta(seconds=policy.line_wait_s)
    offer = Offer(
        organization_id=job.organization_id,
        job=job,
        technician_id=one.technician_id,
        attempt=attempt,
        round=job.round,
        distance_m=one.distance_m,
        expires_at=job.line_wait_until + timedelta(seconds=policy.answer_timeout_s),
    )
    made = state.event_of_offer(
        offer, "offer.made", technician=one.name, round=job.round, distance_m=one.distance_m
    )
    rows.insert(offer, made)
    if not technicians.offer_begun(one.technician_id, offer.pk):
        raise PhoneBusy
    call = telephony.create_call(
        organization=job.organization,
        purpose="offer",
        subject_id=offer.pk,
        attempt=1,
        to_phone=one.phone,
        pool=pool,
        ring_timeout_s=policy.ring_timeout_s,
        time_limit_s=settings.CALL_TIME_LIMIT_S,
        place_by=job.line_wait_until,
        context={"job_id": job.pk},
    )
    if policy.offer_by_text:
        texts.send_offer(offer, job, to_phone=one.phone, pool=pool)
    return offer, call.pk


def _skip(job: Job, candidate: CandidateRow, one: Nearby, reason: str) -> _Step:
    """Not fit any more: passed over in this round, and said so."""
    Candidate.objects.filter(pk=candidate.pk).update(
        verdict=Candidate.Verdict.OUT, reason=reason[:160], skipped_round=job.round
    )
    state.note(
        job,
        "job.skipped",
        technician_id=one.technician_id,
        technician=one.name,
        reason=reason,
    )
    return _AGAIN


def _defer(candidate: CandidateRow, reason: str, busy: set[int]) -> _Step:
    """On another offer: their turn comes when they are free."""
    Candidate.objects.filter(pk=candidate.pk).update(verdict=Candidate.Verdict.DEFERRED, reason=reason[:160])
    busy.add(candidate.technician_id)
    return _AGAIN


def _wait_for_technician(job: Job, policy: CascadePolicy) -> _Step:
    job.line_wait_until = None
    if job.technician_wait_until is None:
        job.technician_wait_until = state.seconds_from_now(policy.technician_wait_s)
    at = min(state.seconds_from_now(TECHNICIAN_POLL_S), job.technician_wait_until)
    _wait(job, Waiting.TECHNICIAN, at, job.technician_wait_until)
    return _DONE


def _wait_for_line(job: Job, policy: CascadePolicy, pool: DispatchPool | None, retry_in_s: float) -> _Step:
    job.line_pool = pool
    if job.line_wait_until is None:
        job.line_wait_until = state.seconds_from_now(policy.line_wait_s)
    pause_s = min(max(retry_in_s, LINE_POLL_S[0]), LINE_POLL_S[1])
    at = min(state.seconds_from_now(pause_s), job.line_wait_until)
    _wait(job, Waiting.LINE, at, job.line_wait_until)
    line_waiters.mark()
    return _DONE


def _wait(job: Job, what: Waiting, at: datetime, until: datetime) -> None:
    """Keeps the token: looking again is the same step."""
    new = job.waiting_for != what
    state.wait_for(job, what, at, new_token=False)
    state.save(job, visible=new)
    if new:
        state.note(job, "job.waiting", waiting_for=str(what), until=until.isoformat())
