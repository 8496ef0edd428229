"""Jobs that are offered to several technicians at once."""

from __future__ import annotations

from dispatch.jobs.models import Job, Offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor


def call_at_once(floor: Floor, count: int = 3) -> Floor:
    """Make the floor call `count` technicians at once for emergencies, for a long time."""
    floor.set_policy(offers_at_once_for_emergencies=count, answer_timeout_s=600, ring_timeout_s=300)
    return floor


def emergency(floor: Floor) -> Job:
    return floor.started(priority=1)


def pending(job: Job) -> list[tuple[int, str]]:
    """(slot, technician) of each pending offer."""
    rows = Offer.objects.filter(job=job, status="pending").order_by("slot")
    return list(rows.values_list("slot", "technician__name"))


def offer_of(job: Job, technician: Technician) -> Offer:
    return Offer.objects.filter(job=job, technician=technician).latest("pk")


def call_of(offer: Offer) -> Call:
    return Call.objects.get(purpose="offer", subject_id=offer.pk)
