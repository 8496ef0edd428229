"""Delete old hand-over notes with their readings."""

from __future__ import annotations

from datetime import datetime

from accounts.models import HandoverNote
from dispatch.core.privacy import retention

NOTE_DAYS = 90


def delete_notes(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` notes written before `before`. Return how many."""
    old = HandoverNote.objects.of(organization_id).filter(written_at__lt=before).order_by("written_at")
    ids = list(old.values_list("pk", flat=True)[:limit])
    HandoverNote.objects.filter(pk__in=ids).delete()
    return len(ids)


def register() -> None:
    """Register the retention rule. Called from AppConfig.ready()."""
    retention.register("handover_notes", NOTE_DAYS, delete_notes, label="Hand-over notes")
