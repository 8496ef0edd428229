"""Somebody takes note of a notification, or takes an alert on: in the browser, by the API, on the phone."""

from __future__ import annotations

from django.db import transaction

from accounts.models import User
from dispatch.core import clock
from dispatch.core.events import Actor
from notifications import push
from notifications.models import Alert, Notification
from notifications.services import alerts

APP, PHONE, TEXT = "app", "phone", "text"


def acknowledge(notification_id: int, *, user: User, actor: Actor) -> Notification:
    """Takes note of it; the second one changes nothing, and the row says who was first. Of an alert it counts for
    everybody in the organization. Raises Notification.DoesNotExist for one that is not the user's."""
    row = Notification.objects.get(pk=notification_id, user=user)
    if row.alert_id is not None:
        acknowledge_alert(row.alert_id, user=user, actor=actor, via=APP)
    with transaction.atomic():
        now = clock.now()
        mine = Notification.objects.filter(pk=row.pk)
        changed = mine.filter(acknowledged_at=None).update(acknowledged_at=now, acknowledged_by=user)
        if mine.filter(read_at=None).update(read_at=now) or changed:
            push.changed(row.organization_id, [row.pk])
    return Notification.objects.select_related("acknowledged_by").get(pk=row.pk)


def acknowledge_alert(
    alert_id: int, *, user: User, actor: Actor, via: str, call_id: int | None = None
) -> tuple[Alert, bool]:
    """Whoever acknowledges has taken it on: it stops everywhere. The alert, and whether this was the first; for
    one that is acknowledged already, or settled, nothing changes. `call_id`: the call in which it happened."""
    with transaction.atomic():
        alert = alerts.locked(alert_id)
        if alert.status != Alert.Status.OPEN:
            return alert, False
        now = clock.now()
        alert.status = Alert.Status.ACKNOWLEDGED
        alert.acknowledged_at, alert.acknowledged_by, alert.acknowledged_via = now, user, via
        alert.next_action_at = alert.next_repeat_at = None
        alert.save()
        rows = Notification.objects.filter(alert=alert, acknowledged_at=None).select_for_update().order_by("pk")
        waiting = list(rows.values_list("pk", flat=True))
        Notification.objects.filter(pk__in=waiting).update(acknowledged_at=now, acknowledged_by=user)
        alerts.note(alert, "alert_acknowledged", actor=actor, via=via)
        alerts.stop(alert, reason=f"{user} acknowledged the alert", actor=actor, but_call=call_id)
        push.changed(alert.organization_id, waiting)
    return alert, True
