"""Acknowledge notifications and alerts: in the browser, through the API, by phone or by link."""

from __future__ import annotations

from django.db import transaction

from accounts.models import User
from dispatch.core import clock
from dispatch.core.events import Actor
from notifications import live_updates
from notifications.models import Alert, Notification
from notifications.services import alerts

APP, PHONE, TEXT, LINK = "app", "phone", "text", "link"


def acknowledge(notification_id: int, *, user: User, actor: Actor) -> Notification:
    """Acknowledge a notification, and its alert for everyone in the organization.

    A second acknowledgment changes nothing: the row names the first user. Raise Notification.DoesNotExist if the
    notification is not the user's.
    """
    row = Notification.objects.get(pk=notification_id, user=user)
    if row.alert_id is not None:
        acknowledge_alert(row.alert_id, user=user, actor=actor, via=APP)
    with transaction.atomic():
        now = clock.now()
        mine = Notification.objects.filter(pk=row.pk)
        changed = mine.filter(acknowledged_at=None).update(acknowledged_at=now, acknowledged_by=user)
        if mine.filter(read_at=None).update(read_at=now) or changed:
            live_updates.notify_changed(row.organization_id, [row.pk])
    return Notification.objects.select_related("acknowledged_by").get(pk=row.pk)


def acknowledge_alert(
    alert_id: int,
    *,
    user: User,
    actor: Actor,
    via: str,
    call_id: int | None = None,
    returns: int | None = None,
) -> tuple[Alert, bool]:
    """Acknowledge the alert for everyone. Return the alert and whether this was the first acknowledgement.

    An acknowledged or resolved alert does not change. `call_id`: the call in which the user acknowledged it.
    `returns`: acknowledge it only if it has opened again this many times.
    """
    with transaction.atomic():
        alert = alerts.lock_alert(alert_id)
        if alert.status != Alert.Status.OPEN or returns not in (None, alert.returns):
            return alert, False
        now = clock.now()
        alert.status = Alert.Status.ACKNOWLEDGED
        alert.acknowledged_at, alert.acknowledged_by, alert.acknowledged_via = now, user, via
        alert.next_action_at = alert.next_repeat_at = None
        alert.returns_at = alerts.return_time(alert, now)
        alert.save()
        rows = (
            Notification.objects.filter(alert=alert, acknowledged_at=None)
            .select_for_update(no_key=True)
            .order_by("pk")
        )
        waiting = list(rows.values_list("pk", flat=True))
        Notification.objects.filter(pk__in=waiting).update(acknowledged_at=now, acknowledged_by=user)
        alerts.append_alert_event(alert, "alert_acknowledged", actor=actor, via=via)
        alerts.cancel_deliveries(alert, reason=f"{user} acknowledged the alert", actor=actor, but_call=call_id)
        live_updates.notify_changed(alert.organization_id, waiting)
    return alert, True
