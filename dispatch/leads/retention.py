"""Delete finished leads after the retention period. Do-not-call entries stay."""

from __future__ import annotations

from datetime import datetime

from dispatch.core.privacy import retention
from dispatch.leads.models import Lead

LEAD_DAYS = 400
# Caps and retries look back at most this far.
MIN_DAYS = 31


def delete_finished_leads(organization_id: int, before: datetime, limit: int) -> int:
    """Delete leads that finished before the cutoff; return how many."""
    finished = Lead.objects.of(organization_id).filter(status=Lead.Status.FINISHED, finished_at__lt=before)
    ids = list(finished.order_by("finished_at").values_list("pk", flat=True)[:limit])
    return Lead.objects.filter(pk__in=ids).delete()[0]


def register() -> None:
    """Register the retention rule."""
    retention.register("leads", LEAD_DAYS, delete_finished_leads, label="Finished leads", shortest_days=MIN_DAYS)
