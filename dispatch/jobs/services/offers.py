"""What becomes of an offer: its call is taken, answered, ends; its time is up."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import transaction

from dispatch.core import clock, faults, rows, statements
from dispatch.jobs import policies, rules
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import CallEnd, Outcome
from dispatch.jobs.services import state
from dispatch.jobs.services.cascade import offer_next
from dispatch.jobs.services.state import Waiting
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call


def call_changed(call: Call) -> None:
    """The call of an offer moved. Reads the call as it is now, so that early, late and doubled news are the same,
    and lost ones are made good by the auditor."""
    offer_id = call.subject_id
    job_id = call.context.get("job_id")
    if job_id is None:
        return
    with transaction.atomic():
        statements.flush_later()
        job = state.lock_job(job_id)
        offer = state.live_offer(job)
        if offer is None or offer.pk != offer_id or job.status != Job.Status.DISPATCHING:
            return
        now_call = rows.get(Call, call.pk)
        end = rules.outcome_of_call(
            now_call.status,
            answered_by=now_call.answered_by,
            error_code=now_call.error_code,
            bad_number=telephony.blames_the_number(now_call),
        )
        if end is not None:
            _ended(job, offer, end)
        elif now_call.status in rules.TAKEN:
            _taken(job, offer, now_call)


def _taken(job: Job, offer: Offer, call: Call) -> None:
    """The provider has the call: the offer's clock starts. Answering extends it, once."""
    policy = policies.frozen(job)
    before = offer.expires_at
    now = clock.now()
    news = []
    if offer.ringing_since is None:
        offer.ringing_since = now
        offer.expires_at = now + timedelta(seconds=policy.answer_timeout_s)
        until = offer.expires_at.isoformat()
        news.append(state.event_of_offer(offer, "offer.ringing", expires_at=until))
    if call.status == Call.Status.ANSWERED and offer.answered_at is None:
        offer.answered_at = min(call.answered_at or now, now)
        decide_by = offer.answered_at + timedelta(seconds=policy.answered_extension_s)
        offer.expires_at = max(offer.expires_at, decide_by)
        until = offer.expires_at.isoformat()
        news.append(state.event_of_offer(offer, "offer.answered", expires_at=until))
    waited = job.line_wait_until
    if call.status != Call.Status.UNKNOWN:
        job.line_wait_until = None
    if not news:
        if job.line_wait_until != waited:
            state.save(job, visible=False)
        return
    rows.update(offer, ("ringing_since", "answered_at", "expires_at"), *news)
    later = before != offer.expires_at
    state.wait_for(job, Waiting.ANSWER, offer.expires_at, new_token=later)
    state.save(job, visible=False)
    if later:
        state.set_timer(job)


def _ended(job: Job, offer: Offer, end: CallEnd) -> None:
    """The call is over and no key was pressed. Missed, the offer may stay open for an answer in another way."""
    if offer.missed_at is not None:
        return
    until = rules.open_after_call(policies.frozen(job), end.outcome, offer.expires_at, clock.now())
    if until is not None and until > clock.now():
        _stays_open(job, offer, end, until)
        return
    state.settle(offer, Offer.Status.FAILED, end.outcome, end.reason, hang_up=False)
    if end.outcome is not Outcome.NOT_PLACED:
        job.line_wait_until = None
    after_settled(job, offer, end.outcome)
    state.save(job)


def _stays_open(job: Job, offer: Offer, end: CallEnd, until: datetime) -> None:
    """What the call came to is kept for the day when nobody has answered in another way either."""
    offer.missed_at, offer.expires_at = clock.now(), until
    offer.outcome, offer.reason = end.outcome, end.reason[:160]
    missed = state.event_of_offer(offer, "offer.missed", reason=end.reason, expires_at=until.isoformat())
    rows.update(offer, ("missed_at", "expires_at", "outcome", "reason"), missed)
    job.line_wait_until = None
    state.wait_for(job, Waiting.ANSWER, until)
    state.save(job)
    state.set_timer(job)


def after_settled(job: Job, offer: Offer, outcome: Outcome) -> None:
    """The next technician's turn: at once, or when this offer's time would have been up (as the policy says)."""
    policy = policies.frozen(job)
    if rules.advances_at_once(policy, outcome):
        state.move_on(job)
    else:
        state.wait_out(job, min(offer.expires_at, state.seconds_from_now(policy.answer_timeout_s)))


def expire_offer(job_id: int, token: str | uuid.UUID, *, place: bool = True) -> None:
    """The job's step is due: its offer's time is up, or its wait is over. The same function for the timeout task
    and the auditor; a token that is not current, or too early a call, changes nothing.

    Call it outside any transaction. `place` as in `offer_next`."""
    step = uuid.UUID(str(token))
    with transaction.atomic():
        job = state.lock_job(job_id)
        if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != step:
            return
        offer = state.live_offer(job)
        if offer is not None:
            if clock.now() < offer.expires_at:
                return
            if offer.missed_at is not None:
                state.settle(offer, Offer.Status.FAILED, Outcome(offer.outcome), offer.reason, hang_up=True)
            else:
                reason = "answered, but no key in time" if offer.answered_at else "no answer in time"
                state.settle(offer, Offer.Status.TIMED_OUT, Outcome.TIMED_OUT, reason, hang_up=True)
            job.line_wait_until = None
            state.move_on(job, enqueued=False)
            state.save(job)
        next_token = job.step_token
    if offer is not None:
        faults.point("jobs.expire.committed")
    offer_next(job_id, next_token, place=place)
