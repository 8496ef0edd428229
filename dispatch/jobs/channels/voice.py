"""Handle offer calls: prompts and pressed keys (the jobs side of telephony's call handlers)."""

from __future__ import annotations

from dispatch.core.db import fast_rows
from dispatch.core.languages import translated
from dispatch.jobs.models import Offer
from dispatch.jobs.rules import phrases
from dispatch.jobs.services import Answer, answer_offer, call_changed
from dispatch.jobs.services.answers import offer_state
from dispatch.jobs.services.offers import begin_accepted
from dispatch.telephony import handlers
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import Call
from dispatch.telephony.speech import Speech, speaking, speech_for


class OfferCallHandler:
    """Handles calls of purpose `offer`. Their subject is an Offer."""

    def on_answer(self, call: Call) -> VoicePrompt:
        """Return the spoken offer, or its result if it can no longer be accepted."""
        return prompt_of(_offer(call))

    def on_key(self, call: Call, key: str) -> VoicePrompt:
        """Apply 1 or 2. Any other key repeats the offer."""
        if key in (phrases.ACCEPT_KEY, phrases.DECLINE_KEY):
            return result_prompt(answer_offer(call.subject_id, call.pk, key), _offer(call))
        return self.on_answer(call)

    def on_status_change(self, call: Call) -> None:
        """Start or extend the offer's deadline, or close the offer."""
        call_changed(call)


_RESULTS = {
    Answer.DECLINED: phrases.DECLINED,
    Answer.TAKEN: phrases.TAKEN_BY_ANOTHER,
    Answer.EXPIRED: phrases.EXPIRED,
    Answer.NO_LONGER: phrases.NO_LONGER_AVAILABLE,
}


def prompt_of(offer: Offer) -> VoicePrompt:
    """Return the prompt for an offer: its details and keys while it can be accepted, else its result."""
    became = offer_state(offer)
    if became is not None:
        return result_prompt(became, offer)
    with speaking(speech_to(offer)):
        return VoicePrompt(phrases.offer_prompt(prompt_context(offer)), keys=phrases.OFFER_KEYS)


def result_prompt(answer: Answer, offer: Offer) -> VoicePrompt:
    """Return the prompt that says what came out of the offer."""
    with speaking(speech_to(offer)):
        if answer is Answer.ACCEPTED:
            return VoicePrompt(phrases.accepted_prompt(prompt_context(offer)))
        return VoicePrompt(result_sentences(answer))


def result_sentences(answer: Answer) -> tuple[str, ...]:
    """Return the result of an offer that the technician does not have, in the active language."""
    return translated(_RESULTS[answer])


def speech_to(offer: Offer) -> Speech:
    """Return how to speak to the offer's technician. Select the technician and the job's organization."""
    return speech_for(offer.job.organization, offer.technician)


def _offer(call: Call) -> Offer:
    related = ("technician", "job", "job__service_type", "job__organization")
    return fast_rows.fetch_by_pk(Offer, call.subject_id, *related)


def prompt_context(offer: Offer) -> phrases.PromptContext:
    """Return the facts of the offer for a spoken prompt."""
    job = offer.job
    return phrases.PromptContext(
        service=job.service_type.spoken_name or job.service_type.name,
        priority=job.priority,
        address=job.address,
        distance_m=offer.distance_m,
        unit=job.organization.distance_unit,
        customer_name=job.customer_name,
        customer_phone=str(job.customer_phone),
        region=job.organization.default_region,
        arrival=job.arrival_words,
    )


def register() -> None:
    """Register the handler of offer calls with telephony."""
    handlers.register_calls("offer", OfferCallHandler())
    handlers.register_accepted("offer", begin_accepted)
