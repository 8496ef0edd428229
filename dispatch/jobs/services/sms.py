"""Send the texts of a job: the offer, the address after assignment, and the link to the technician's page.

Call these in the transaction that makes the change. Technicians who can't be texted (they opted out, or no number
may send texts) get calls only.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock, languages
from dispatch.core.db import fast_rows
from dispatch.core.events import SYSTEM, Actor
from dispatch.jobs import policies, signed_links, technician_messages
from dispatch.jobs.models import Job, Offer, TechnicianNotice
from dispatch.jobs.rules import phrases
from dispatch.jobs.rules.customer_phrases import without_links
from dispatch.technicians.models import Technician
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Text
from dispatch.telephony.services import NoTextNumber, TextNotAllowed
from dispatch.telephony.speech import language_for

log = structlog.get_logger(__name__)

# An address text is dropped after this time, when the technician has learned the address by other means.
ADDRESS_TEXT_LIFETIME = timedelta(hours=4)


def send_offer(offer: Offer, job: Job, *, to_phone: Any, pool: DispatchPool) -> Text | None:
    """Send the offer by text in addition to its call. Return None if this technician is only called."""
    organization, url = job.organization, signed_links.offer_url(offer)
    with languages.override(language_for(organization, offer.technician)):
        body = phrases.offer_text(organization.name, prompt_context(job, offer.distance_m), url)
    try:
        return telephony.create_text(
            organization=job.organization,
            to_phone=to_phone,
            body=body,
            purpose=Text.Purpose.OFFER,
            subject_id=offer.pk,
            pool=pool,
            not_after=offer.expires_at,
            context={"job_id": job.pk},
        )
    except (NoTextNumber, TextNotAllowed) as error:
        log.info("offer_text_skipped", offer=offer.pk, reason=str(error))
        return None


def send_address(job: Job, technician_id: int, *, actor: Actor) -> Text | None:
    """Send the job's address and customer to its technician. Return None if they can't be texted."""
    policy = (
        policies.frozen_policy(job)
        if job.policy
        else policies.for_service_type(job.organization_id, job.service_type_id)
    )
    if not policy.address_by_text:
        return None
    if actor.type == "technician":  # others' assignments are reported with their notice
        until = clock.now() + ADDRESS_TEXT_LIFETIME
        kind = technician_messages.JOB
        technician_messages.report(technician_id, kind, job.pk, attempt=job.version, until=until)
    technician = fast_rows.fetch_by_pk(Technician, technician_id)
    if not telephony.may_text(job.organization_id, technician.phone):
        return None
    is_manual = actor.type != "technician"
    url = signed_links.technician_url(technician)
    with languages.override(language_for(job.organization, technician)):
        body = phrases.job_text(job.organization.name, prompt_context(job), url, is_manual=is_manual)
    try:
        return telephony.create_text(
            organization=job.organization,
            to_phone=technician.phone,
            body=body,
            purpose=Text.Purpose.JOB,
            subject_id=job.pk,
            attempt=job.version,
            not_after=clock.now() + ADDRESS_TEXT_LIFETIME,
            context={"job_id": job.pk},
        )
    except (NoTextNumber, TextNotAllowed) as error:
        log.info("address_text_skipped", job=job.pk, reason=str(error))
        return None


def send_news(notice: TechnicianNotice, job: Job) -> Text | None:
    """Send a change of the job to the technician of the notice. Return None if they can't be texted."""
    technician = Technician.objects.get(pk=notice.technician_id)
    url = signed_links.technician_url(technician)
    with languages.override(language_for(job.organization, technician)):
        body = phrases.news_text(job.organization.name, notice.news, prompt_context(job), url)
    try:
        return telephony.create_text(
            organization=job.organization,
            to_phone=technician.phone,
            body=body,
            purpose=Text.Purpose.JOB_NEWS,
            subject_id=notice.pk,
            not_after=notice.alert_at,
            context={"job_id": job.pk},
        )
    except (NoTextNumber, TextNotAllowed) as error:
        log.info("news_text_skipped", job=job.pk, reason=str(error))
        return None


def send_link(technician: Technician, *, actor: Actor = SYSTEM) -> Text:
    """Send a technician the link to their page. Raises NoTextNumber and TextNotAllowed."""
    earlier = telephony.texts_of(Text.Purpose.LINK, technician.pk).first()
    organization = technician.organization
    with languages.override(language_for(organization, technician)):
        body = phrases.page_text(organization.name, signed_links.technician_url(technician))
    return telephony.create_text(
        organization=organization,
        to_phone=technician.phone,
        body=body,
        purpose=Text.Purpose.LINK,
        subject_id=technician.pk,
        attempt=earlier.attempt + 1 if earlier else 1,
        actor=actor,
    )


def goes_to(text: Text, technician: Technician | None) -> bool:
    """Return whether the text goes to the technician's present phone. A former one is lost, or somebody else's."""
    return technician is not None and str(text.to_phone) == str(technician.phone)


def prompt_context(job: Job, distance_m: int = 0, *, is_spoken: bool = False) -> phrases.PromptContext:
    """Return the facts of the job for a text, or for a call. What the customer entered contains no links."""
    number = str(job.customer_phone) if is_spoken else job.customer_phone.as_national if job.customer_phone else ""
    return phrases.PromptContext(
        service=(is_spoken and job.service_type.spoken_name) or job.service_type.name,
        priority=job.priority,
        address=without_links(job.address),
        distance_m=distance_m,
        unit=job.organization.distance_unit,
        customer_name=without_links(job.customer_name),
        customer_phone=number,
        region=job.organization.default_region,
        arrival=job.arrival_words,
    )
