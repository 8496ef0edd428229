"""Report several events about one subject by one notification, which counts them while it is unread.

A notification counts the events from its own one to the next notification of the same person, kind and subject,
for at most GROUPED_FOR. Events about what was taken away since, such as a deleted note, are not counted. Each
count is computed from the events under a lock on the notification, so it does not matter who computes the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from dispatch.core.models import Event
from notifications import live_updates, rules
from notifications.models import Notification
from notifications.subjects import facts_of

# A notification counts further events for this long, at most this many.
GROUPED_FOR, MAX_GROUPED = timedelta(minutes=10), 1000


def values_of(rule: rules.Rule, event: Event) -> dict[str, Any]:
    """Return what fills the rule's title and parts for this event."""
    return {
        **facts_of(event.subject_type, event.subject_id),
        **event.data,
        **rule.says(event.data),
        "id": event.subject_id,
        "actor": event.actor_label,
    }


def count_in_earlier(rule: rules.Rule, event: Event, users: Sequence[int]) -> list[int]:
    """Count the event in the users' recent unread notifications of the same kind and subject.

    Return the users without such a notification, who get a new one. A repeated event is counted once.
    """
    rows = _notifications_about(rule, event).filter(
        user_id__in=users,
        alert=None,
        read_at=None,
        event_id__lt=event.pk,
        created_at__gt=event.at - GROUPED_FOR,
    )
    # In the order in which a withdrawal locks them, and before the events are read.
    locked = list(rows.select_for_update(no_key=True).order_by("pk"))
    if not locked:
        return list(users)
    oldest = min(row.event_id for row in locked)
    recent = _events_about(rule, event, since=event.at - 2 * GROUPED_FOR, first=oldest).filter(pk__lte=event.pk)
    earlier = list(recent.order_by("-pk")[: MAX_GROUPED + 1])
    gone = _gone(rule, event, earlier)
    changed: dict[int | None, int] = {}  # the user's id → the notification's
    for row in reversed(locked):
        concerned = [each for each in earlier if _concerns(rule, each.data, row.user_id)]
        if row.user_id in changed or row.event_id not in {each.pk for each in concerned}:
            continue
        counted = [each for each in concerned if each.pk >= row.event_id and _item(rule, each) not in gone]
        _write_count(rule, row, event, len(counted))
        changed[row.user_id] = row.pk
    live_updates.notify_changed(event.organization_id, list(changed.values()))
    return [user for user in users if user not in changed]


def count_again(rule: rules.Rule, row: Notification, event: Event) -> bool:
    """Count what is left for a notification after `event` took something away; return whether anything is.

    The notification must be locked.
    """
    since, until = row.created_at - GROUPED_FOR, row.created_at + GROUPED_FOR
    events = _events_about(rule, event, since=since, first=row.event_id)
    others = _notifications_about(rule, event).filter(user=row.user, event_id__gt=row.event_id)
    if following := others.order_by("event_id").values_list("event_id", flat=True).first():
        events = events.filter(pk__lt=following)
    counted = list(events.order_by("pk")[:MAX_GROUPED])
    gone = _gone(rule, event, counted)
    left = [
        each
        for each in counted
        if (each.pk == row.event_id or (each.at < until and row.alert_id is None))
        and _concerns(rule, each.data, row.user_id)
        and _item(rule, each) not in gone
    ]
    if left:
        _write_count(rule, row, left[-1], len(left))
    return bool(left)


def _write_count(rule: rules.Rule, row: Notification, latest: Event, count: int) -> None:
    message = rules.message_of(rule, {**values_of(rule, latest), "count": count})
    row.title, row.body = message.title, message.body
    row.save(update_fields=["title", "body"])


def _notifications_about(rule: rules.Rule, event: Event) -> QuerySet[Notification]:
    rows: QuerySet[Notification] = Notification.objects.of(event.organization_id).filter(
        kind=rule.kind, subject_type=event.subject_type, subject_id=event.subject_id
    )
    return rows


def _events_about(rule: rules.Rule, event: Event, *, since: datetime, first: int) -> QuerySet[Event]:
    """Select the events of the rule about the same subject, and with the same value of its field `same`.

    `first` is the id of the first one; without it, all events of the subject would be read.
    """
    events = Event.objects.filter(
        organization_id=event.organization_id,
        kind=rule.kind,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        at__gt=since,
        pk__gte=first,
    )
    return events.filter(**{f"data__{rule.same}": event.data.get(rule.same)}) if rule.same else events


def _concerns(rule: rules.Rule, data: Mapping[str, Any], user: int | None) -> bool:
    """Return whether the event notifies the user, if it notifies only those whom its data name."""
    if not rule.when(data):
        return False
    owner = data.get(rule.owner) if rule.owner else None
    return owner is None or user in (owner if isinstance(owner, list) else [owner])


def _item(rule: rules.Rule, event: Event) -> Any:
    return event.data.get(rule.item) if rule.item else None


def _gone(rule: rules.Rule, event: Event, earlier: Iterable[Event]) -> Iterable[Any]:
    """Return the rule's field `item` of those earlier events that are about something that was taken away."""
    if not rule.withdraws:
        return frozenset()
    events = Event.objects.filter(
        organization_id=event.organization_id,
        kind__in=rule.withdraws,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        **{f"data__{rule.item}__in": [_item(rule, each) for each in earlier]},
    )
    return frozenset(events.values_list(f"data__{rule.item}", flat=True))
