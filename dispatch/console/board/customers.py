"""Find the earlier jobs of a customer, by phone."""

from __future__ import annotations

from accounts.models import Organization
from dispatch.jobs.models import Job

MAX_EARLIER = 5


def find_earlier_jobs(organization: Organization, phone: str, *, other_than: int = 0) -> list[Job]:
    """Return the customer's latest jobs, newest first, without the job `other_than`. `phone`: E.164."""
    if not phone:
        return []
    rows = Job.objects.of(organization).filter(customer_phone=phone).select_related("service_type", "technician")
    return [job for job in rows.order_by("-id")[: MAX_EARLIER + 1] if job.pk != other_than][:MAX_EARLIER]
