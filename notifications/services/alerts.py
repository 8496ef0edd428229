"""The small steps that every change of an alert is made of, and its end. Lock order: Alert → Notification →
Delivery → Call."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from dispatch.core import clock, events
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call
from notifications.models import Alert, Channel, Delivery

OPEN = ("waiting", "sending")


def locked(alert_id: int) -> Alert:
    """The alert, its row locked until the transaction ends. Raises Alert.DoesNotExist."""
    found: Alert = Alert.objects.select_for_update(no_key=True).get(pk=alert_id)
    return found


def note(alert: Alert, verb: str, *, actor: Actor = SYSTEM, **data: Any) -> None:
    """Appends `<subject>.<verb>` to the history of what the alert is about."""
    kind = f"{alert.subject_type}.{verb}"
    events.append(
        alert.organization_id,
        kind,
        alert.subject_id,
        actor=actor,
        alert_id=alert.pk,
        event_id=alert.event_id,
        **data,
    )


def stop(alert: Alert, *, reason: str, actor: Actor = SYSTEM, but_call: int | None = None) -> None:
    """Whatever is on its way for the alert is not needed any more: what waits is dropped, phones stop ringing.
    `but_call`: the call in which somebody just acknowledged goes on to its goodbye."""
    ways = Delivery.objects.filter(notification__alert=alert, status__in=OPEN)
    waiting = ways.exclude(channel__in=(Channel.VOICE, Channel.SMS), status="sending")
    waiting.update(status=Delivery.Status.DROPPED, next_attempt_at=None, ended_at=clock.now())
    by_phone = list(
        Delivery.objects.filter(notification__alert=alert)
        .exclude(channel=Channel.EMAIL)
        .values_list("pk", flat=True)
    )
    telephony.cancel_texts(Q(purpose="alert", subject_id__in=by_phone), actor=actor)
    calls = Call.objects.filter(purpose=Call.Purpose.ALERT, ended_at=None, subject_id__in=by_phone)
    for call_id in calls.order_by("pk").values_list("pk", flat=True):
        if call_id == but_call:
            continue
        telephony.hang_up(call_id, actor=actor, reason=reason)


def settle(event: Event, kind: str, how: str) -> None:
    """Ends the alerts whose cause this event ended; acknowledged ones are said to be settled, too."""
    about = Alert.objects.of(event.organization_id).filter(
        ~Q(status=Alert.Status.SETTLED), kind=kind, subject_type=event.subject_type, subject_id=event.subject_id
    )
    for alert in about.select_for_update(no_key=True).order_by("pk"):
        was_open = alert.status == Alert.Status.OPEN
        alert.status = Alert.Status.SETTLED
        alert.settled_at, alert.settled_how = clock.now(), how
        alert.next_action_at = alert.next_repeat_at = None
        alert.save(update_fields=["status", "settled_at", "settled_how", "next_action_at", "next_repeat_at"])
        note(alert, "alert_settled", how=how)
        if was_open:
            stop(alert, reason=how)
