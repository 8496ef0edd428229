"""Delete old notifications with their deliveries, alerts without notifications, removed channels and pushes."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from dispatch.core.languages import mark
from dispatch.core.privacy import retention
from notifications.models import Alert, AlertChannel, Delivery, Notification, PushMessage

KEPT_DAYS = 180


def delete_old(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` notifications created before `before`, and old alerts without notifications.

    Keeps notifications of open alerts and those with a delivery in progress.
    """
    old = Notification.objects.of(organization_id).filter(created_at__lt=before).order_by("pk")
    closed = old.filter(Q(alert=None) | ~Q(alert__status=Alert.Status.OPEN))
    idle = closed.exclude(deliveries__status__in=("waiting", "sending"))
    ids = list(idle.values_list("pk", flat=True)[:limit])
    Notification.objects.filter(pk__in=ids).delete()
    remaining = Notification.objects.filter(alert=OuterRef("pk"))
    over = Alert.objects.of(organization_id).filter(~Q(status=Alert.Status.OPEN), created_at__lt=before)
    empty = list(over.exclude(Exists(remaining)).order_by("pk").values_list("pk", flat=True)[:limit])
    Alert.objects.filter(pk__in=empty).delete()
    used = Delivery.objects.filter(destination=OuterRef("pk"))
    removed = AlertChannel.objects.of(organization_id).filter(removed_at__lt=before).exclude(Exists(used))
    gone = list(removed.order_by("pk").values_list("pk", flat=True)[:limit])
    AlertChannel.objects.filter(pk__in=gone).delete()
    pushes = PushMessage.objects.of(organization_id).filter(ended_at__lt=before)
    sent = list(pushes.order_by("ended_at").values_list("pk", flat=True)[:limit])
    PushMessage.objects.filter(pk__in=sent).delete()
    return max(len(ids), len(empty), len(gone), len(sent))


def register() -> None:
    """Register the retention rule with core."""
    retention.register("notifications", KEPT_DAYS, delete_old, label=mark("Notifications and alerts"))
