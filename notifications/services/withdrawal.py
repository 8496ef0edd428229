"""Withdraw the notifications of what is gone, such as a note that its author deleted.

An unread notification counts as read from then on, and says why. What its channels have not sent is dropped. One
that counts other notes as well says how many are left. One that was read or acknowledged stays as it was.
"""

from __future__ import annotations

from django.db.models import QuerySet

from dispatch.core import clock
from dispatch.core.models import Event
from notifications import live_updates, rules
from notifications.models import Delivery, Notification
from notifications.services import alerts, grouping, push_messages


def is_withdrawn(rule: rules.Rule, event: Event) -> bool:
    """Return whether what the event is about is gone already, so that it notifies nobody."""
    if not rule.withdraws:
        return False
    return _same_thing(rule, event).filter(kind__in=rule.withdraws, pk__gt=event.pk).exists()


def withdraw(rule: rules.Rule, event: Event) -> None:
    """Withdraw the notifications of the rule that are about what this event took away."""
    earlier = _same_thing(rule, event).filter(kind=rule.kind, pk__lt=event.pk)
    of_events = list(earlier.values_list("pk", flat=True))
    if not of_events:
        return
    how = rules.describe_resolution(event.kind, rule, event.actor_label, event.data)
    alerts.resolve_alerts(event, rule.kind, how, of_events=of_events)
    withdrawn: list[int] = []
    changed: list[int] = []
    for row in _unread_notifications_of(rule, event, max(of_events)):
        (changed if grouping.count_again(rule, row, event) else withdrawn).append(row.pk)
    now = clock.now()
    Notification.objects.filter(pk__in=withdrawn).update(read_at=now, settled_at=now, settled_how=how)
    alerts.drop_deliveries(Delivery.objects.filter(notification__in=withdrawn))
    for pk in withdrawn:
        push_messages.close_withdrawn(pk)
    live_updates.notify_changed(event.organization_id, withdrawn + changed)


def _unread_notifications_of(rule: rules.Rule, event: Event, of_event: int) -> list[Notification]:
    """Lock and return each person's notification that reports the event `of_event`, if it is unread."""
    rows = Notification.objects.of(event.organization_id).filter(
        kind=rule.kind, subject_type=event.subject_type, subject_id=event.subject_id, event_id__lte=of_event
    )
    latest = rows.order_by("user_id", "-event_id").distinct("user_id").values_list("pk", flat=True)
    unread = rows.filter(pk__in=list(latest), read_at=None, acknowledged_at=None, settled_at=None)
    return list(unread.select_for_update(no_key=True).order_by("pk"))


def _same_thing(rule: rules.Rule, event: Event) -> QuerySet[Event]:
    """Select the events about the same subject whose data have the same value of the rule's field `item`."""
    events: QuerySet[Event] = Event.objects.filter(
        organization_id=event.organization_id,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        **{f"data__{rule.item}": event.data.get(rule.item)},
    )
    return events
