"""What a technician hears when a job is offered, and what their key does: jobs' side of telephony's `purposes`."""

from __future__ import annotations

from dispatch.core import clock
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import words
from dispatch.jobs.services import Answer, answer_offer, call_changed
from dispatch.telephony import purposes
from dispatch.telephony.models import Call
from dispatch.telephony.purposes import Prompt


class OfferCalls:
    """The handler of calls with purpose `offer`; their subject is an Offer."""

    def answered(self, call: Call) -> Prompt:
        """The offer in words, or that it is gone."""
        offer = _offer(call)
        live = offer.status == Offer.Status.PENDING and clock.now() < offer.expires_at
        if not live or offer.job.status != Job.Status.DISPATCHING:
            if offer.status == Offer.Status.ACCEPTED:
                return Prompt(words.accepted(told(offer)))
            return Prompt(words.TAKEN_BY_ANOTHER if offer.job.technician_id else words.NO_LONGER_AVAILABLE)
        return Prompt(words.offer(told(offer)), keys=words.OFFER_KEYS)

    def pressed(self, call: Call, key: str) -> Prompt:
        """Acts on 1 and 2; anything else tells the offer again."""
        if key in (words.ACCEPT_KEY, words.DECLINE_KEY):
            answer = answer_offer(call.subject_id, call.pk, key)
            if answer is Answer.ACCEPTED:
                return Prompt(words.accepted(told(_offer(call))))
            return Prompt(SAID[answer])
        return self.answered(call)

    def changed(self, call: Call) -> None:
        """Starts the offer's clock, extends it, or settles the offer."""
        call_changed(call)


SAID = {
    Answer.DECLINED: words.DECLINED,
    Answer.TAKEN: words.TAKEN_BY_ANOTHER,
    Answer.EXPIRED: words.EXPIRED,
    Answer.NO_LONGER: words.NO_LONGER_AVAILABLE,
}


def _offer(call: Call) -> Offer:
    return Offer.objects.select_related("job__service_type", "job__organization").get(pk=call.subject_id)


def told(offer: Offer) -> words.Told:
    job = offer.job
    return words.Told(
        service=job.service_type.spoken_name or job.service_type.name,
        priority=job.priority,
        address=job.address,
        distance_m=offer.distance_m,
        unit=job.organization.distance_unit,
        customer_name=job.customer_name,
        customer_phone=str(job.customer_phone),
    )


def register() -> None:
    """Registers the offer purpose with telephony."""
    purposes.register("offer", OfferCalls())
