"""Apply technicians' answers to offers: in time, late, repeated, or recorded before the offer was closed."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event
from dispatch.jobs import offer_sql, policies, rules
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Outcome, phrases
from dispatch.jobs.services import slots, transitions
from dispatch.technicians import services as technicians
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call
from dispatch.telephony.services import PressedKey


class Answer(StrEnum):
    """The result of a technician's answer."""

    ACCEPTED = "accepted"
    DECLINED = "declined"
    TAKEN = "taken"
    EXPIRED = "expired"
    NO_LONGER = "no_longer"
    NOT_A_KEY = "not_a_key"


class AnswerChannel(StrEnum):
    """The channel on which a technician answers."""

    PHONE = "phone"
    TEXT = "text"
    LINK = "link"
    CALL_BACK = "call_back"


# The reason of a declined offer, shown to dispatchers.
_DECLINED_BY = {
    AnswerChannel.PHONE: "pressed 2",
    AnswerChannel.TEXT: "replied 2",
    AnswerChannel.LINK: "declined on the offer page",
    AnswerChannel.CALL_BACK: "called back and pressed 2",
}


def answer_offer(
    offer_id: int,
    call_id: int | None,
    key: str,
    *,
    by: AnswerChannel = AnswerChannel.PHONE,
    arrived_at: datetime | None = None,
) -> Answer:
    """Apply `key` if the offer is pending and unexpired, and return the result.

    A late yes takes the job if nobody has it and no other phone rings for it. By phone, `call_id` must be the
    offer's call; for a text, link or call-back it is None. A repeated key returns the same result. The key counts
    as of its arrival (default: now; by phone, when it was recorded), even if the end of the call or the offer's
    deadline was processed first. A key that another technician pressed earlier, and that is recorded but not
    applied, counts first. Call it outside any transaction.

    Raises Offer.DoesNotExist, and Call.DoesNotExist if the call is not this offer's.
    """
    job_id, is_its_call = offer_sql.find_job(offer_id, call_id)
    if by is AnswerChannel.PHONE and not is_its_call:
        raise Call.DoesNotExist(f"Call {call_id} does not belong to offer {offer_id}.")
    if key not in (phrases.ACCEPT_KEY, phrases.DECLINE_KEY):
        return Answer.NOT_A_KEY
    if key == phrases.ACCEPT_KEY or by is AnswerChannel.PHONE:  # by phone, a yes may be recorded before this key
        apply_earlier_answers(job_id, offer_id, by, arrived_at)
    with transaction.atomic():
        job = transitions.lock_job(job_id)
        offer = fast_rows.fetch_by_pk(Offer, offer_id, "technician", lock=True)
        recorded = _first_answer(offer) if by is AnswerChannel.PHONE else None
        at = recorded.at if recorded else arrived_at or clock.now()
        said = recorded.key if recorded else key
        if offer.status != Offer.Status.PENDING:
            if recorded is not None and recorded.is_applied:
                return _late_answer(job, offer, said)  # a repeated webhook, which must not take the job now
            is_recorded = recorded is not None or (arrived_at is not None and _arrived_before_close(offer, at))
            if is_recorded and _was_closed_too_early(job, offer, at):
                answer = _apply_key_after_close(job, offer, said, by)
            elif said == phrases.ACCEPT_KEY and _may_take_late(job, offer, at):
                answer = _take_late(job, offer, by)
            else:
                return _late_answer(job, offer, key)
        elif job.status != Job.Status.DISPATCHING or job.paused_at or not offer.technician.is_active:
            return Answer.NO_LONGER
        elif at >= offer.expires_at and said != phrases.ACCEPT_KEY:
            return Answer.EXPIRED
        else:
            answer = _apply_key(job, offer, said, by)
    fault_injection.crash_point("jobs.answer.committed")
    return answer


def apply_first_key(job: Job, offer: Offer, key: str) -> Answer:
    """Apply the first key that was pressed in the offer's call, in the transaction that records it.

    For the usual case: job, offer and technician are locked, the job is being dispatched and has had no other
    offer, and the key arrived while the offer was pending and unexpired.
    """
    actor = Actor("technician", offer.technician_id, offer.technician.name)
    if key == phrases.ACCEPT_KEY:
        answer = _accept_offer(job, offer, actor, AnswerChannel.PHONE, is_only=True)
    else:
        answer = _decline_offer(job, offer, actor, AnswerChannel.PHONE)
    transaction.on_commit(lambda: fault_injection.crash_point("jobs.answer.committed"))
    return answer


def apply_earlier_answers(
    job_id: int, offer_id: int, by: AnswerChannel, arrived_at: datetime | None = None
) -> None:
    """Apply the recorded answers to the job's other offers that arrived before this yes."""
    if not offer_sql.has_other_offers(job_id, offer_id):  # the usual case
        return
    others = Offer.objects.filter(job_id=job_id).exclude(pk=offer_id)
    at = arrived_at or clock.now()
    if by is AnswerChannel.PHONE:
        answers = (phrases.ACCEPT_KEY, phrases.DECLINE_KEY)
        at = next((pressed.at for pressed in telephony.keys_of("offer", offer_id) if pressed.key in answers), at)
    apply_recorded_answers(others, before=at)


def apply_answers_before_closing(job_id: int) -> None:
    """Apply the recorded answers to the job, oldest first, if a pending offer has a recorded key.

    Call it outside any transaction before a function that closes offers and applies only the key of each: the
    earlier yes to another offer counts first.
    """
    pending = Offer.objects.filter(job_id=job_id, status=Offer.Status.PENDING)
    calls = Call.objects.filter(purpose="offer", subject_id__in=pending.values("pk"))
    if calls.exclude(keys_pressed="").exists():
        apply_recorded_answers(Offer.objects.filter(job_id=job_id))


def apply_recorded_answers(offers: QuerySet[Offer], *, before: datetime | None = None) -> None:
    """Apply recorded keys, texts and keys of call-backs that no process has applied, as after a crash.

    `offers` are of one job. `before`: only answers that arrived earlier.
    """
    rows = list(offers.values_list("pk", "organization_id", "technician__phone"))
    if not rows:
        return
    ids = [pk for pk, _, _ in rows]
    telephony.apply_keys_of("offer", ids, before=before)
    telephony.apply_inbound_keys_of("offer", ids, before=before)
    phones = {str(phone) for _, _, phone in rows}
    telephony.apply_texts_from(rows[0][1], phones, _is_key, before=before)


def _is_key(body: str) -> bool:
    return bool(phrases.key_in(body))


def apply_recorded_key(job: Job, offer: Offer) -> bool:
    """Apply the key recorded for this pending offer, and return whether there was one.

    A decline counts if it arrived in time; a yes counts while the offer is pending. Every function that closes an
    offer without an answer calls this first. Job and offer must be locked.
    """
    recorded = _first_answer(offer) if offer.technician.is_active else None
    if recorded is None or (recorded.at >= offer.expires_at and recorded.key != phrases.ACCEPT_KEY):
        return False
    _apply_key(job, offer, recorded.key, AnswerChannel.PHONE)
    return True


def _first_answer(offer: Offer) -> PressedKey | None:
    """Return the first key of the offer's call that accepts or declines it. Later keys change nothing."""
    pressed = telephony.keys_of("offer", offer.pk)
    return next(
        (pressed_key for pressed_key in pressed if pressed_key.key in (phrases.ACCEPT_KEY, phrases.DECLINE_KEY)),
        None,
    )


def _apply_key(job: Job, offer: Offer, key: str, by: AnswerChannel) -> Answer:
    actor = Actor("technician", offer.technician_id, offer.technician.name)
    return (_accept_offer if key == phrases.ACCEPT_KEY else _decline_offer)(job, offer, actor, by)


def _was_closed_too_early(job: Job, offer: Offer, arrived_at: datetime) -> bool:
    """Return whether the offer was closed as unanswered although a key had arrived in time.

    False if the job is no longer free, or the technician was deactivated.
    """
    return (
        offer.status in (Offer.Status.TIMED_OUT, Offer.Status.FAILED)
        and arrived_at < offer.expires_at
        and offer.round >= job.first_round
        and job.status in (Job.Status.DISPATCHING, Job.Status.PENDING)
        and job.paused_at is None
        and offer.technician.is_active
    )


def _arrived_before_close(offer: Offer, at: datetime) -> bool:
    return offer.settled_at is not None and at <= offer.settled_at


def _apply_key_after_close(job: Job, offer: Offer, key: str, by: AnswerChannel) -> Answer:
    """Apply a key whose offer was closed as unanswered before the key was processed."""
    technician = offer.technician
    technicians.lock_technicians([technician.pk])
    if technician.auto_paused_at and offer.settled_at and technician.auto_paused_at >= offer.settled_at:
        technicians.end_auto_pause(technician.pk, actor=SYSTEM)  # the call was not missed
    actor = Actor("technician", technician.pk, technician.name)
    if key == phrases.ACCEPT_KEY:
        return _accept_offer(job, offer, actor, by, how="accepted earlier")
    _close_answered_offer(offer, Offer.Status.DECLINED, Outcome.DECLINED, _DECLINED_BY[by], actor, by)
    return Answer.DECLINED


def _may_take_late(job: Job, offer: Offer, at: datetime) -> bool:
    """Return whether a yes to this closed offer takes the job.

    It does if nobody has the job, no other phone rang for it when the yes arrived, and the yes is newer than any
    answer to this offer. A yes that is processed late, or again, is judged by the time of its arrival.
    """
    if offer.technician_id in job.not_again or not offer.technician.is_active:
        return False
    unanswered = offer.status in (Offer.Status.TIMED_OUT, Offer.Status.FAILED)
    if not unanswered and offer.settled_at is not None and at <= offer.settled_at:
        return False
    if job.status not in (Job.Status.PENDING, Job.Status.DISPATCHING) or job.paused_at is not None:
        return False
    if _was_moved_since(job, offer):
        return False
    pending = job.offers.filter(status=Offer.Status.PENDING)
    if pending.filter(technician_id=offer.technician_id).exists():
        return True
    return not _has_rung_elsewhere(job, offer, at)


def _was_moved_since(job: Job, offer: Offer) -> bool:
    """Return whether the job's address or arrival window was corrected after the offer was made."""
    is_moved = Q(data__changed__contains=["address"]) | Q(data__changed__contains=["arrival window"])
    return Event.objects.filter(
        is_moved,
        organization_id=job.organization_id,
        subject_type="job",
        subject_id=job.pk,
        kind="job.corrected",
        at__gte=offer.created_at,
    ).exists()


def _has_rung_elsewhere(job: Job, offer: Offer, at: datetime) -> bool:
    """Return whether another technician's phone rang for the job at this time.

    An offer that stays open after its call is answered on other channels, so its phone does not ring. An offer
    that was declined by phone was open until the key was pressed, even if it was applied later.
    """
    others = job.offers.exclude(technician_id=offer.technician_id).filter(created_at__lt=at)
    open_then = [
        other.pk
        for other in others.filter(Q(settled_at=None) | Q(settled_at__gte=at))
        if not (other.status == Offer.Status.DECLINED and (key := _first_answer(other)) and key.at < at)
    ]
    calls = Call.objects.filter(purpose="offer", subject_id__in=open_then, requested_at__lt=at)
    rang = calls.exclude(status=Call.Status.CREATED).filter(Q(ended_at=None) | Q(ended_at__gte=at))
    return bool(rang.exists())


def _take_late(job: Job, offer: Offer, by: AnswerChannel) -> Answer:
    """Assign the job to the technician of a closed offer, or through their newer live offer of the job."""
    technician = offer.technician
    actor = Actor("technician", technician.pk, technician.name)
    live = next((one for one in transitions.live_offers(job) if one.technician_id == technician.pk), None)
    technicians.lock_technicians([technician.pk])
    if live is None:
        return _accept_offer(job, offer, actor, by, how="accepted earlier")
    if by is AnswerChannel.PHONE and (ringing := telephony.open_call_of("offer", live.pk)):
        telephony.hang_up(ringing.pk, actor=actor, reason="accepted in an earlier call")
    return _accept_offer(job, live, actor, by)


def _accept_offer(
    job: Job,
    offer: Offer,
    actor: Actor,
    by: AnswerChannel,
    *,
    how: str = "accepted first",
    is_only: bool = False,
) -> Answer:
    """Assign the job to the offer's technician, and withdraw the job's other pending offers.

    Their ringing phones are hung up on. A technician who has answered hears that the job is taken. `is_only`: the
    job has had no other offer.
    """
    withdrawn = [] if is_only else slots.withdraw_others(job, offer, f"{offer.technician.name} {how}", actor)
    _close_answered_offer(offer, Offer.Status.ACCEPTED, Outcome.ACCEPTED, "", actor, by)
    transitions.assign_to(
        job, offer.technician_id, actor=actor, technician=offer.technician.name, offer_id=offer.pk, by=str(by)
    )
    for other in [] if is_only else offer_sql.other_open_calls(job.pk, offer.pk):
        if other.subject_id in withdrawn and other.status == Call.Status.ANSWERED:
            telephony.repeat_prompt(other.pk)
        else:
            telephony.hang_up(other.pk, actor=actor, reason="the job was accepted by another technician")
    return Answer.ACCEPTED


def _decline_offer(job: Job, offer: Offer, actor: Actor, by: AnswerChannel) -> Answer:
    _close_answered_offer(offer, Offer.Status.DECLINED, Outcome.DECLINED, _DECLINED_BY[by], actor, by)
    job.line_wait_until = None
    schedule_next_offer(job, offer, Outcome.DECLINED)
    transitions.save_job(job)
    return Answer.DECLINED


def _close_answered_offer(
    offer: Offer, status: Offer.Status, outcome: Outcome, reason: str, actor: Actor, by: AnswerChannel
) -> None:
    """Close the offer.

    The call on which the technician answered stays up, so that they hear the result; any other call of the offer
    is ended.
    """
    in_the_call = by is AnswerChannel.PHONE
    way: dict[str, Any] = {} if in_the_call else {"by": str(by)}
    before = Offer.Status(offer.status)
    transitions.close_offer(
        offer, status, outcome, reason, before=before, actor=actor, hang_up=not in_the_call, **way
    )


def _late_answer(job: Job, offer: Offer, key: str) -> Answer:
    """Return the result of a key for an offer that is already closed. Changes nothing."""
    if _has_job(job, offer):
        return Answer.ACCEPTED
    if offer.status == Offer.Status.DECLINED and key == phrases.DECLINE_KEY:
        return Answer.DECLINED
    if job.status == Job.Status.ASSIGNED:
        return Answer.TAKEN
    if offer.status in (Offer.Status.TIMED_OUT, Offer.Status.FAILED):
        return Answer.EXPIRED
    return Answer.NO_LONGER


def _has_job(job: Job, offer: Offer) -> bool:
    """Return whether the offer's technician has the job, by this offer or assigned by a dispatcher."""
    is_theirs = job.technician_id == offer.technician_id
    return is_theirs and (offer.status == Offer.Status.ACCEPTED or job.status == Job.Status.ASSIGNED)


def offer_state(offer: Offer) -> Answer | None:
    """Return the offer's result, or None while it can be accepted, if only late. `offer.job` must be current."""
    job = offer.job
    if _has_job(job, offer):
        return Answer.ACCEPTED
    if offer.status == Offer.Status.DECLINED:
        return Answer.DECLINED
    if job.technician_id not in (None, offer.technician_id):
        return Answer.TAKEN
    if offer.status == Offer.Status.PENDING:
        is_open = job.status == Job.Status.DISPATCHING and not job.paused_at and offer.technician.is_active
        return None if is_open else Answer.NO_LONGER
    if _may_take_late(job, offer, clock.now()):
        return None
    return Answer.EXPIRED if offer.status in (Offer.Status.TIMED_OUT, Offer.Status.FAILED) else Answer.NO_LONGER


def schedule_next_offer(job: Job, offer: Offer, outcome: Outcome) -> None:
    """Schedule the next offer of the slot: immediately, or at this offer's deadline if the policy says so."""
    policy = policies.frozen_policy(job)
    at = None
    if not rules.advances_at_once(policy, outcome):
        at = min(offer.expires_at, transitions.seconds_from_now(policy.answer_timeout_s))
    slots.advance(job, offer, at)
