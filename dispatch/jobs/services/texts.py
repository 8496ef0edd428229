"""The texts of a job: its offer, its address for whoever has it, and the link to a technician's page. Call them in
the transaction that knows why; who cannot be texted (opted out, no number that may) is left with the phone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.events import SYSTEM, Actor
from dispatch.jobs import links, policies
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import words
from dispatch.technicians.models import Technician
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Text
from dispatch.telephony.services import NoTextNumber, TextNotAllowed

log = structlog.get_logger(__name__)

# An address that could not be sent for so long is known by other means.
ADDRESS_WORTH = timedelta(hours=4)


def send_offer(offer: Offer, job: Job, *, to_phone: Any, pool: DispatchPool) -> Text | None:
    """The offer by text, beside its call; None when this technician is only called."""
    try:
        return telephony.create_text(
            organization=job.organization,
            to_phone=to_phone,
            body=words.offer_text(job.organization.name, told(job, offer.distance_m), links.offer_url(offer)),
            purpose=Text.Purpose.OFFER,
            subject_id=offer.pk,
            pool=pool,
            not_after=offer.expires_at,
            context={"job_id": job.pk},
        )
    except (NoTextNumber, TextNotAllowed) as error:
        log.info("an offer goes by phone only", offer=offer.pk, reason=str(error))
        return None


def tell_address(job: Job, technician_id: int, *, actor: Actor) -> Text | None:
    """The job's address and customer, to whoever has it now."""
    policy = (
        policies.frozen(job) if job.policy else policies.for_service_type(job.organization_id, job.service_type_id)
    )
    if not policy.address_by_text:
        return None
    technician = Technician.objects.get(pk=technician_id)
    if not telephony.may_text(job.organization_id, technician.phone):
        return None
    by_hand = actor.type != "technician"
    url = links.technician_url(technician)
    try:
        return telephony.create_text(
            organization=job.organization,
            to_phone=technician.phone,
            body=words.job_text(job.organization.name, told(job), url, by_hand=by_hand),
            purpose=Text.Purpose.JOB,
            subject_id=job.pk,
            attempt=job.version,
            not_after=clock.now() + ADDRESS_WORTH,
            context={"job_id": job.pk},
        )
    except (NoTextNumber, TextNotAllowed) as error:
        log.info("an address is not sent by text", job=job.pk, reason=str(error))
        return None


def send_link(technician: Technician, *, actor: Actor = SYSTEM) -> Text:
    """The link to their own page. Raises NoTextNumber, TextNotAllowed."""
    earlier = telephony.texts_of(Text.Purpose.LINK, technician.pk).first()
    return telephony.create_text(
        organization=technician.organization,
        to_phone=technician.phone,
        body=f"{technician.organization.name}: your page for duty, position and jobs is "
        f"{links.technician_url(technician)} Keep it to yourself.",
        purpose=Text.Purpose.LINK,
        subject_id=technician.pk,
        attempt=earlier.attempt + 1 if earlier else 1,
        actor=actor,
    )


def told(job: Job, distance_m: int = 0) -> words.Told:
    """What there is to say about the job, in writing."""
    return words.Told(
        service=job.service_type.name,
        priority=job.priority,
        address=job.address,
        distance_m=distance_m,
        unit=job.organization.distance_unit,
        customer_name=job.customer_name,
        customer_phone=job.customer_phone.as_national if job.customer_phone else "",
    )
