"""Move an offer through its life: the call starts, is answered or ends; the deadline passes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from django.db import OperationalError, transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows
from dispatch.core.db.errors import is_lock_timeout
from dispatch.core.db.lock_waits import limited_transaction
from dispatch.jobs import policies, rules, sql
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import CallEnd, Outcome
from dispatch.jobs.services import slots, transitions
from dispatch.jobs.services.answers import (
    AnswerChannel,
    apply_answers_before_closing,
    apply_earlier_answers,
    apply_recorded_key,
    schedule_next_offer,
)
from dispatch.jobs.services.dispatching import offer_next
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call

# Statuses whose report changes nothing about an offer whose deadline has started.
IN_PROGRESS = (Call.Status.SUBMITTED, Call.Status.RINGING, Call.Status.ANSWERED)


def call_changed(call: Call) -> None:
    """Apply a change of the offer's call.

    `call` is the state that its session has just committed. The session that commits a newer state reports it as
    well, and the order of both does not matter. The auditor makes up for lost reports.
    """
    offer_id = call.subject_id
    job_id = call.context.get("job_id")
    if job_id is None:
        return
    is_new = call.status == Call.Status.SUBMITTED  # the provider has just accepted it: the deadline starts
    is_answered = call.status == Call.Status.ANSWERED
    is_in_progress = call.status in IN_PROGRESS
    if not is_new and sql.is_unaffected(offer_id, is_in_progress=is_in_progress, is_answered=is_answered):
        return
    if call.keys_pressed and call.ended_at is not None:  # its key may be applied now
        apply_earlier_answers(job_id, offer_id, AnswerChannel.PHONE)
    with limited_transaction(defers_fsync=True):
        offer = transitions.lock_offer_with_job(job_id, offer_id)
        if offer is None:
            return
        end = _end_of_call(call)
        if end is not None:
            _close_after_call(offer.job, offer, end)
        elif call.status in rules.PLACED_STATUSES:
            start_offer_clock(offer.job, offer, call)


def begin_accepted(offer_ids: Sequence[int]) -> Callable[[Sequence[Call]], set[int]]:
    """Lock offers whose calls the provider may have accepted. Return a function that starts their deadlines.

    It is given the accepted calls, and returns the ids of those whose offers it has locked. `call_changed` does
    the same for the others, after the commit.
    """
    find_offers = transitions.find_free_offers(offer_ids)

    def start_clocks(calls: Sequence[Call]) -> set[int]:
        offers = find_offers()
        started = [call for call in calls if call.status in IN_PROGRESS and call.subject_id in offers]
        for call in started:
            offer = offers[call.subject_id]
            start_offer_clock(offer.job, offer, call)
        return {call.pk for call in started}

    return start_clocks


def _end_of_call(call: Call) -> CallEnd | None:
    """Return the effect of the call's status on its offer, or None while the call is in progress."""
    refused = telephony.is_not_permitted(call)
    code = f" (error {call.error_code})" if call.error_code.strip("0") else ""
    return rules.outcome_of_call(
        call.status,
        answered_by=call.answered_by,
        error_code=call.error_code,
        bad_number=telephony.is_bad_number(call),
        not_permitted=f"{call.error_message or 'no reason given'}{code}" if refused else "",
        is_account_refused=refused and bool(call.account.outage),
        was_spoken=call.status != Call.Status.COMPLETED or telephony.was_heard(call),
    )


class OngoingCall(Protocol):
    """The call of an offer, as it was reported."""

    @property
    def status(self) -> str:
        """Return the call's status."""

    @property
    def answered_at(self) -> datetime | None:
        """Return when it was answered, or None if that was now."""


def _handle_unknown_call(job: Job, offer: Offer, call: Call) -> None:
    """Handle a call request with an unknown outcome.

    Without a report within the ring time, the phone counts as not ringing and the next technician is called. A
    report starts the offer's deadline.
    """
    requested_at = call.requested_at or clock.now()
    until = requested_at + timedelta(seconds=call.ring_timeout_s + rules.SILENCE_MARGIN_S)
    if offer.ringing_since is not None or offer.expires_at == until:
        return
    offer.expires_at = until
    fast_rows.update_row(offer, ("expires_at",))
    slots.await_answer(job, offer)
    transitions.save_job(job, visible=False)
    transitions.set_timer(job, until)


def start_offer_clock(job: Job, offer: Offer, call: OngoingCall) -> None:
    """Start the offer's deadline, because the provider has accepted the call. Answering extends it once.

    Job and offer must be locked, and the offer pending.
    """
    if isinstance(call, Call) and call.status == Call.Status.UNKNOWN:
        _handle_unknown_call(job, offer, call)
        return
    policy = policies.frozen_policy(job)
    before = offer.expires_at
    now = clock.now()
    new_events = []
    if offer.ringing_since is None:
        offer.ringing_since = now
        offer.expires_at = now + timedelta(seconds=policy.answer_timeout_s)
        until = offer.expires_at.isoformat()
        new_events.append(transitions.event_of_offer(offer, "offer.ringing", expires_at=until))
    if call.status == Call.Status.ANSWERED and offer.answered_at is None:
        offer.answered_at = min(call.answered_at or now, now)
        decide_by = offer.answered_at + timedelta(seconds=policy.answered_extension_s)
        offer.expires_at = max(offer.expires_at, decide_by)
        until = offer.expires_at.isoformat()
        new_events.append(transitions.event_of_offer(offer, "offer.answered", expires_at=until))
    waited = job.line_wait_until
    job.line_wait_until = None
    if not new_events:
        if job.line_wait_until != waited:
            transitions.save_job(job, visible=False)
        return
    fast_rows.update_row(offer, ("ringing_since", "answered_at", "expires_at"), *new_events)
    later = before != offer.expires_at
    slots.await_answer(job, offer, new_token=later)
    transitions.save_job(job, visible=False)
    if later:
        transitions.set_timer(job, offer.expires_at)


def _close_after_call(job: Job, offer: Offer, end: CallEnd) -> None:
    """Handle the end of the call.

    A recorded key counts. Without a key the offer is missed, and may stay open for an answer on another channel.
    """
    if apply_recorded_key(job, offer) or offer.missed_at is not None:
        return
    until = rules.open_after_call(policies.frozen_policy(job), end.outcome, offer.expires_at, clock.now())
    if until is not None and until > clock.now():
        _keep_open(job, offer, end, until)
        return
    status = Offer.Status.RESCINDED if end.outcome in rules.WITHDRAWN else Offer.Status.FAILED
    transitions.close_offer(offer, status, end.outcome, end.reason, hang_up=False)
    if end.outcome is not Outcome.NOT_PLACED and end.outcome not in rules.WITHDRAWN:
        job.line_wait_until = None
    schedule_next_offer(job, offer, end.outcome)
    transitions.save_job(job)


def _keep_open(job: Job, offer: Offer, end: CallEnd, until: datetime) -> None:
    """Keep a missed offer open until `until`, and store the call's outcome in case no other channel answers."""
    offer.missed_at, offer.expires_at = clock.now(), until
    offer.outcome, offer.reason = end.outcome, end.reason[:160]
    missed = transitions.event_of_offer(offer, "offer.missed", reason=end.reason, expires_at=until.isoformat())
    fast_rows.update_row(offer, ("missed_at", "expires_at", "outcome", "reason"), missed)
    job.line_wait_until = None
    slots.await_answer(job, offer)
    transitions.save_job(job)
    transitions.set_timer(job, until)


def expire_offer(job_id: int, token: str | uuid.UUID, *, place: bool = True) -> None:
    """Run the job's due step: the deadline of its offers has passed, or its wait is over.

    Both the timeout task and the auditor call this. An outdated token or an early invocation changes nothing. Each
    offer is closed in a separate transaction, so that a locked technician holds back only their own slot. Call it
    outside any transaction. `place` as in `offer_next`.
    """
    step = uuid.UUID(str(token))
    apply_answers_before_closing(job_id)
    blocked: dict[int, OperationalError] = {}
    while True:
        offer: Offer | None = None
        try:
            with transaction.atomic():
                job = transitions.lock_job(job_id)
                if job.status != Job.Status.DISPATCHING or job.paused_at or job.step_token != step:
                    return
                pending = transitions.live_offers(job)
                offer = next((one for one in pending if one.pk not in blocked and _is_expired(job, one)), None)
                if offer is None:
                    break
                if not apply_recorded_key(job, offer):
                    _close_expired(job, offer)
                    step = job.step_token
        except OperationalError as error:
            if offer is None or not is_lock_timeout(error):
                raise
            blocked[offer.pk] = error
        else:
            fault_injection.crash_point("jobs.expire.committed")
    if not pending or job.fill_at is not None or job.waiting_for == transitions.Waiting.START:
        offer_next(job_id, step, place=place)
    for lock_timeout in blocked.values():
        raise lock_timeout


def _is_expired(job: Job, offer: Offer) -> bool:
    """Return whether the offer's deadline has passed, after an answered call has extended it."""
    _apply_recorded_answer(job, offer)
    return clock.now() >= offer.expires_at


def _close_expired(job: Job, offer: Offer) -> None:
    status, end, has_outage = _end_of_expired(offer)
    transitions.close_offer(offer, status, end.outcome, end.reason, hang_up=True)
    if not has_outage:
        job.line_wait_until = None
    slots.advance(job, offer, enqueued=False)
    transitions.save_job(job)


def _apply_recorded_answer(job: Job, offer: Offer) -> None:
    """Extend the deadline of an answered call whose report was recorded but not applied."""
    if offer.answered_at is not None or clock.now() < offer.expires_at:
        return
    call = telephony.open_call_of("offer", offer.pk)
    if call is not None and call.status == Call.Status.ANSWERED:
        start_offer_clock(job, offer, call)


def _end_of_expired(offer: Offer) -> tuple[Offer.Status, CallEnd, bool]:
    """Return how an expired offer ends, and whether its account has an outage.

    If the provider did not report, the technician did not miss the call.
    """
    if offer.missed_at is not None:
        return Offer.Status.FAILED, CallEnd(Outcome(offer.outcome), offer.reason), False
    call = telephony.open_call_of("offer", offer.pk)
    if call is not None and call.status in (Call.Status.REQUESTING, Call.Status.UNKNOWN):
        silent = "the phone provider did not respond or report a call"
        has_outage = telephony.record_silence(call)
        return Offer.Status.RESCINDED, CallEnd(Outcome.PROVIDER_SILENT, silent), has_outage
    if call is not None and call.status == Call.Status.SUBMITTED and not telephony.has_webhook(call):
        nothing = "the phone provider reported nothing about the call"
        return Offer.Status.TIMED_OUT, CallEnd(Outcome.NOT_REPORTED, nothing), False
    reason = "answered, but pressed no key in time" if offer.answered_at else "no answer in time"
    return Offer.Status.TIMED_OUT, CallEnd(Outcome.TIMED_OUT, reason), False
