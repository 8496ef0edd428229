"""Load facts about an event's subject for the text of a notification. One function per type of subject."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.jobs.models import Job
from dispatch.leads.models import Campaign
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.technicians.models import Technician

_CREDENTIALS = [f"endpoint__{name}" for name in Endpoint.CREDENTIALS]


def _job(job_id: int) -> dict[str, str]:
    job = Job.objects.select_related("service_type").filter(pk=job_id).first()
    return {"service": job.service_type.name, "customer": job.customer_name, "place": job.address} if job else {}


def _technician(technician_id: int) -> dict[str, str]:
    technician = Technician.objects.filter(pk=technician_id).first()
    return {"name": technician.name, "phone": technician.phone.as_national} if technician else {}


def _endpoint(endpoint_id: int) -> dict[str, str]:
    endpoint = Endpoint.objects.defer(*Endpoint.CREDENTIALS).filter(pk=endpoint_id).first()
    return {"name": endpoint.name} if endpoint else {}


def _message(message_id: int) -> dict[str, str]:
    messages = Message.objects.select_related("endpoint", "group").defer("payload", *_CREDENTIALS)
    message = messages.filter(pk=message_id).first()
    if message is None:
        return {}
    return {"to": message.endpoint.name if message.endpoint else message.url, "group": message.group.name}


def _group(group_id: int) -> dict[str, str]:
    group = MessageGroup.objects.select_related("endpoint").defer(*_CREDENTIALS).filter(pk=group_id).first()
    return {"group": group.name, "to": group.endpoint.name if group.endpoint else ""} if group else {}


def _campaign(campaign_id: int) -> dict[str, str]:
    campaign = Campaign.objects.filter(pk=campaign_id).first()
    return {"name": campaign.name} if campaign else {}


_ABOUT: dict[str, Callable[[int], dict[str, str]]] = {
    "job": _job,
    "technician": _technician,
    "endpoint": _endpoint,
    "message": _message,
    "group": _group,
    "campaign": _campaign,
}


def facts_of(subject_type: str, subject_id: int) -> dict[str, str]:
    """Return the facts by name. Empty for a subject that no longer exists or has no facts."""
    about = _ABOUT.get(subject_type)
    return about(subject_id) if about else {}
