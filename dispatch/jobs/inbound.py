"""Technicians who text or call back: jobs' side of telephony's listeners."""

from __future__ import annotations

from datetime import timedelta

from dispatch.core import clock
from dispatch.jobs import links
from dispatch.jobs.models import Offer
from dispatch.jobs.offer_calls import SAID, told
from dispatch.jobs.rules import words
from dispatch.jobs.services import Answer, By, answer_offer
from dispatch.jobs.standing import standing
from dispatch.technicians.models import Technician
from dispatch.telephony import purposes
from dispatch.telephony.models import InboundCall, Text
from dispatch.telephony.purposes import Prompt

# For so long a technician who comes too late is told what became of the offer.
REMEMBERED = timedelta(hours=24)


class OfferTexts:
    """The handler of texts with purpose `offer`; their subject is an Offer."""

    def wanted(self, text: Text) -> bool:
        """While the offer can be answered."""
        return Offer.objects.filter(pk=text.subject_id or 0, status="pending", expires_at__gt=clock.now()).exists()

    def changed(self, text: Text) -> None:
        """Nothing depends on a text: the offer is on the phone, too."""


class Technicians:
    """Listens for technicians of the organization whose number was texted or called."""

    def replied(self, text: Text) -> str | None:
        """1 and 2 count for the last offer that this technician was texted, and for no other: another may have
        been made since, of which they know nothing yet."""
        if (technician := _technician(text.organization_id, text.from_phone)) is None:
            return None
        key = words.key_in(text.body)
        sent = Text.objects.filter(
            organization_id=text.organization_id,
            purpose=Text.Purpose.OFFER,
            direction=Text.Direction.OUT,
            to_phone=text.from_phone,
            requested_at__gt=text.created_at - REMEMBERED,
            requested_at__lte=text.created_at,  # the answer may be dealt with late
        )
        last = sent.order_by("-requested_at").first()
        offer = Offer.objects.filter(pk=last.subject_id or 0, technician=technician).first() if last else None
        if offer is None:
            return words.NOTHING_OFFERED if key else None
        if not key:
            return words.ANSWER_WITH if standing(offer) is None else None
        answer = answer_offer(offer.pk, None, key, by=By.TEXT)
        return words.TEXT_ANSWERS[answer]

    def helped(self, text: Text) -> str | None:
        if (technician := _technician(text.organization_id, text.from_phone)) is None:
            return None
        return (
            f"{technician.organization.name}: answer an offer with 1 (accept) or 2 (decline), or call this number "
            f"back. Your page: {links.technician_url(technician)} STOP ends texts, not calls."
        )

    def called(self, call: InboundCall) -> Prompt | None:
        """The live offer, or what became of the last one."""
        if (technician := _technician(call.organization_id, call.from_phone)) is None:
            return None
        offers = Offer.objects.select_related("job__service_type", "job__organization").filter(
            technician=technician, created_at__gt=clock.now() - REMEMBERED
        )
        offer = offers.filter(status="pending").first() or offers.order_by("-id").first()
        if offer is None:
            return Prompt((f"Hello {technician.name}.", words.NOTHING_OFFERED, "Goodbye."))
        call.subject_id = offer.pk
        return _prompt(offer)

    def pressed(self, call: InboundCall, key: str) -> Prompt:
        offers = Offer.objects.select_related("job__service_type", "job__organization")
        offer = offers.get(pk=call.subject_id or 0)
        if key not in (words.ACCEPT_KEY, words.DECLINE_KEY):
            return _prompt(offer)
        answer = answer_offer(offer.pk, None, key, by=By.CALL_BACK)
        if answer is Answer.ACCEPTED:
            return Prompt(words.accepted(told(offer)))
        return Prompt(SAID[answer])


def _prompt(offer: Offer) -> Prompt:
    became = standing(offer)
    if became is None:
        return Prompt(words.offer(told(offer)), keys=words.OFFER_KEYS)
    return Prompt(words.accepted(told(offer)) if became is Answer.ACCEPTED else SAID[became])


def _technician(organization_id: int, phone: str) -> Technician | None:
    found = Technician.objects.of(organization_id).filter(phone=phone, is_active=True)
    one: Technician | None = found.select_related("organization").first()
    return one


def register() -> None:
    """Registers with telephony who answers technicians."""
    purposes.register_texts(Text.Purpose.OFFER, OfferTexts())
    purposes.register_listener("offer", Technicians())
