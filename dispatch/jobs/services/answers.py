"""What a technician's answer does, by whichever way it comes."""

from __future__ import annotations

from enum import StrEnum

from django.db import transaction

from dispatch.core import clock, faults
from dispatch.core.events import Actor
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Outcome, words
from dispatch.jobs.services import state
from dispatch.jobs.services.offers import after_settled
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call


class Answer(StrEnum):
    """What came of the key."""

    ACCEPTED = "accepted"
    DECLINED = "declined"
    TAKEN = "taken"
    EXPIRED = "expired"
    NO_LONGER = "no_longer"
    NOT_A_KEY = "not_a_key"


class By(StrEnum):
    """The way by which a technician answers."""

    PHONE = "phone"
    TEXT = "text"
    LINK = "link"
    CALL_BACK = "call_back"


# Why an offer is declined, as a dispatcher reads it.
_DECLINED_BY = {
    By.PHONE: "pressed 2",
    By.TEXT: "replied 2",
    By.LINK: "declined on the offer's page",
    By.CALL_BACK: "called back and pressed 2",
}


def answer_offer(offer_id: int, call_id: int | None, key: str, *, by: By = By.PHONE) -> Answer:
    """Counts `key` only for the pending, unexpired offer: by phone that of this very call, by another way
    (`call_id` None) the one that the text, the link or the call-back is about. The same key twice has the same
    answer.

    Raises Offer.DoesNotExist, and Call.DoesNotExist when the call is not this offer's."""
    if by is By.PHONE and not telephony.calls_of("offer", offer_id).filter(pk=call_id or 0).exists():
        raise Call.DoesNotExist(f"Call {call_id} is none of offer {offer_id}.")
    job_id = Offer.objects.values_list("job_id", flat=True).get(pk=offer_id)
    if key not in (words.ACCEPT_KEY, words.DECLINE_KEY):
        return Answer.NOT_A_KEY
    with transaction.atomic():
        job = state.lock_job(job_id)
        offer = (
            job.offers.select_for_update(no_key=True, of=("self",)).select_related("technician").get(pk=offer_id)
        )
        if offer.status != Offer.Status.PENDING:
            return _late(job, offer, key)
        if clock.now() >= offer.expires_at:
            return Answer.EXPIRED
        if job.status != Job.Status.DISPATCHING or job.paused_at:
            return Answer.NO_LONGER
        actor = Actor("technician", offer.technician_id, offer.technician.name)
        answer = (_accept if key == words.ACCEPT_KEY else _decline)(job, offer, actor, by)
    faults.point("jobs.answer.committed")
    return answer


def _accept(job: Job, offer: Offer, actor: Actor, by: By) -> Answer:
    _settle(offer, Offer.Status.ACCEPTED, Outcome.ACCEPTED, "", actor, by)
    state.assign_to(
        job, offer.technician_id, actor=actor, technician=offer.technician.name, offer_id=offer.pk, by=str(by)
    )
    others = job.offers.exclude(pk=offer.pk).values("pk")
    for other in Call.objects.filter(purpose="offer", subject_id__in=others, ended_at=None).order_by("pk"):
        telephony.hang_up(other.pk, actor=actor, reason="the job was accepted by another technician")
    return Answer.ACCEPTED


def _decline(job: Job, offer: Offer, actor: Actor, by: By) -> Answer:
    _settle(offer, Offer.Status.DECLINED, Outcome.DECLINED, _DECLINED_BY[by], actor, by)
    job.line_wait_until = None
    after_settled(job, offer, Outcome.DECLINED)
    state.save(job)
    return Answer.DECLINED


def _settle(offer: Offer, status: Offer.Status, outcome: Outcome, reason: str, actor: Actor, by: By) -> None:
    """Whoever pressed the key in the offer's call hears what came of it; a phone that still rings is hung up."""
    in_the_call = by is By.PHONE
    way = {} if in_the_call else {"by": str(by)}
    state.settle(offer, status, outcome, reason, actor=actor, hang_up=not in_the_call, **way)


def _late(job: Job, offer: Offer, key: str) -> Answer:
    """The offer is settled already: what to say, and nothing else."""
    if offer.status == Offer.Status.ACCEPTED and job.technician_id == offer.technician_id:
        return Answer.ACCEPTED
    if offer.status == Offer.Status.DECLINED and key == words.DECLINE_KEY:
        return Answer.DECLINED
    if job.status == Job.Status.ASSIGNED:
        return Answer.TAKEN
    if offer.status in (Offer.Status.TIMED_OUT, Offer.Status.FAILED):
        return Answer.EXPIRED
    return Answer.NO_LONGER
