"""Load facts about an event's subject for the text of a notification. One function per type of subject."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.jobs.models import Job
from dispatch.leads.models import Campaign
from dispatch.outbox.models import Endpoint
from dispatch.technicians.models import Technician


def _job(job_id: int) -> dict[str, str]:
    job = Job.objects.select_related("service_type").filter(pk=job_id).first()
    return {"service": job.service_type.name, "customer": job.customer_name, "place": job.address} if job else {}


def _technician(technician_id: int) -> dict[str, str]:
    technician = Technician.objects.filter(pk=technician_id).first()
    return {"name": technician.name, "phone": technician.phone.as_national} if technician else {}


def _endpoint(endpoint_id: int) -> dict[str, str]:
    endpoint = Endpoint.objects.filter(pk=endpoint_id).first()
    return {"name": endpoint.name} if endpoint else {}


def _campaign(campaign_id: int) -> dict[str, str]:
    campaign = Campaign.objects.filter(pk=campaign_id).first()
    return {"name": campaign.name} if campaign else {}


_ABOUT: dict[str, Callable[[int], dict[str, str]]] = {
    "job": _job,
    "technician": _technician,
    "endpoint": _endpoint,
    "campaign": _campaign,
}


def facts_of(subject_type: str, subject_id: int) -> dict[str, str]:
    """Return the facts by name. Empty for a subject that no longer exists or has no facts."""
    about = _ABOUT.get(subject_type)
    return about(subject_id) if about else {}
