"""Retention of leads that have ended, and of recordings that nothing plays."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from dispatch.core.languages import mark
from dispatch.core.privacy import retention
from dispatch.leads.models import Lead
from dispatch.leads.services import recordings

LEAD_DAYS = 400
RECORDING_DAYS = 7  # calls in progress may still play a recording that was just replaced
# The do-not-call list and the limits on calls per person do not need leads, but a client may report about a recent
# one.
MIN_DAYS = 31


def delete_leads(organization_id: int, before: datetime, limit: int) -> int:
    """Delete leads that ended before the cutoff. The do-not-call list is kept.

    A lead that is locked, such as by a user who opens it again, is skipped.
    """
    ended = Lead.objects.of(organization_id).filter(status=Lead.Status.FINISHED, finished_at__lt=before)
    with transaction.atomic():
        locked = ended.order_by("finished_at").select_for_update(no_key=True, skip_locked=True)
        ids = list(locked.values_list("pk", flat=True)[:limit])
        Lead.objects.filter(pk__in=ids).delete()
    return len(ids)


def register() -> None:
    """Register the retention rules of leads and recordings."""
    retention.register("recordings", RECORDING_DAYS, recordings.delete_unused, label=mark("Unused recordings"))
    retention.register("leads", LEAD_DAYS, delete_leads, label=mark("Leads"), shortest_days=MIN_DAYS)
