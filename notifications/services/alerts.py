"""Steps shared by all changes of alerts. Lock order: Alert → Notification → Delivery → PushMessage, Call."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet

from dispatch.core import clock, events
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call
from notifications import rules
from notifications.escalation_rules import Plan
from notifications.models import Alert, Channel, Delivery
from notifications.services import push_messages

OPEN = ("waiting", "sending")


def lock_alert(alert_id: int) -> Alert:
    """Lock the alert's row until the transaction ends. Raise Alert.DoesNotExist."""
    alert: Alert = Alert.objects.select_for_update(no_key=True).get(pk=alert_id)
    return alert


def append_alert_event(alert: Alert, verb: str, *, actor: Actor = SYSTEM, **data: Any) -> None:
    """Append `<subject>.<verb>` to the history of the alert's subject."""
    kind = f"{alert.subject_type}.{verb}"
    events.append(
        alert.organization_id,
        kind,
        alert.subject_id,
        actor=actor,
        alert_id=alert.pk,
        event_id=alert.event_id,
        alert_kind=alert.kind,
        **data,
    )


def return_time(alert: Alert, since: datetime) -> datetime | None:
    """Return when the alert opens again if nothing happens after `since`, or None if nothing can end its cause."""
    rule = rules.BY_KIND.get(alert.kind)
    if rule is None or not rule.returns:
        return None
    after_s = Plan.from_json(alert.plan).return_after_s or settings.ALERT_RETURN_AFTER_S
    return since + timedelta(seconds=after_s)


def cancel_deliveries(alert: Alert, *, reason: str, actor: Actor = SYSTEM, but_call: int | None = None) -> None:
    """Cancel the alert's deliveries: drop waiting ones, hang up ringing calls, close what browsers show.

    `but_call`: the call in which a user just acknowledged the alert, which continues until its goodbye.
    """
    by_phone = drop_deliveries(Delivery.objects.filter(notification__alert=alert), actor=actor)
    calls = Call.objects.filter(purpose=Call.Purpose.ALERT, ended_at=None, subject_id__in=by_phone)
    for call_id in calls.order_by("pk").values_list("pk", flat=True):
        if call_id == but_call:
            continue
        telephony.hang_up(call_id, actor=actor, reason=reason)
    push_messages.close_alert(alert)


def drop_deliveries(deliveries: QuerySet[Delivery], *, actor: Actor = SYSTEM) -> list[int]:
    """Drop those of the deliveries that wait, and cancel their texts. Return the ids of the texts and calls."""
    waiting = deliveries.filter(status__in=OPEN).exclude(
        channel__in=(Channel.VOICE, Channel.SMS), status="sending"
    )
    waiting.update(status=Delivery.Status.DROPPED, next_attempt_at=None, ended_at=clock.now())
    others = (Channel.EMAIL, Channel.CHAT, Channel.PUSH)
    by_phone = list(deliveries.exclude(channel__in=others).values_list("pk", flat=True))
    telephony.cancel_texts(Q(purpose="alert", subject_id__in=by_phone), actor=actor)
    return by_phone


def resolve_alerts(event: Event, kind: str, how: str, *, of_events: Collection[int] | None = None) -> None:
    """Resolve the alerts raised before this event whose cause it ended, including acknowledged ones.

    `of_events`: only the alerts that these events raised.
    """
    about = Alert.objects.of(event.organization_id).filter(
        ~Q(status=Alert.Status.SETTLED),
        kind=kind,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        event_id__lt=event.pk,
    )
    if of_events is not None:
        about = about.filter(event_id__in=of_events)
    for alert in about.select_for_update(no_key=True).order_by("pk"):
        was_open = alert.status == Alert.Status.OPEN
        alert.status = Alert.Status.SETTLED
        alert.settled_at, alert.settled_how = clock.now(), how
        alert.next_action_at = alert.next_repeat_at = alert.returns_at = None
        alert.save(
            update_fields=["status", "settled_at", "settled_how", "next_action_at", "next_repeat_at", "returns_at"]
        )
        append_alert_event(alert, "alert_settled", how=how)
        if was_open:
            cancel_deliveries(alert, reason=how)
