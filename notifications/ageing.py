"""Old notifications are forgotten, with their deliveries, and alerts that have none any more."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from dispatch.core import retention
from notifications.models import Alert, Notification

KEPT_DAYS = 180


def forget(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes notifications from before then, but none of an open alert, and none whose delivery is under way."""
    old = Notification.objects.of(organization_id).filter(created_at__lt=before).order_by("pk")
    closed = old.filter(Q(alert=None) | ~Q(alert__status=Alert.Status.OPEN))
    idle = closed.exclude(deliveries__status__in=("waiting", "sending"))
    ids = list(idle.values_list("pk", flat=True)[:limit])
    Notification.objects.filter(pk__in=ids).delete()
    told = Notification.objects.filter(alert=OuterRef("pk"))
    over = Alert.objects.of(organization_id).filter(~Q(status=Alert.Status.OPEN), created_at__lt=before)
    empty = list(over.exclude(Exists(told)).order_by("pk").values_list("pk", flat=True)[:limit])
    Alert.objects.filter(pk__in=empty).delete()
    return max(len(ids), len(empty))


def register() -> None:
    retention.register("notifications", KEPT_DAYS, forget, label="Notifications and alerts")
