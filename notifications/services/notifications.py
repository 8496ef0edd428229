"""Turn events into notifications and alerts, and resolve those whose cause has ended.

Runs in the event reader's transaction. Critical events arrive twice: early, in commit order, and again in log
order, so both paths are idempotent. Events about one subject are appended under its lock, so their ids give their
order: the end of a cause resolves the notifications from before it, and a new notification looks for a later end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import QuerySet

from accounts.models import Membership, User
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.runtime.queues import notify_loop
from notifications import live_updates, rules, sql
from notifications.models import Alert, Channel, Delivery, Level, Notification, Route
from notifications.services import (
    alert_links,
    alerts,
    chat_channels,
    grouping,
    ownership,
    push_subscriptions,
    withdrawal,
)
from notifications.services.preferences import Wants, plan_of, wants_of
from notifications.services.push_messages import PUSH_LOOP

log = structlog.get_logger(__name__)

# An organization may have very many members. Above this number of notifications, a transaction ends with an event.
MAX_NOTIFICATIONS = 2000
EMAIL_LOOP, PHONE_LOOP = "notifications_email", "notifications_phone"


def handle(batch: list[Event]) -> None:
    """Handle a batch from the event reader: write notifications, resolve ended causes, and push both to pages."""
    for event in batch:
        if (rule := rules.BY_KIND.get(event.kind)) and rule.when(event.data):
            _notify(rule, event)
        _end(event)


def handle_early(event: Event) -> None:
    """Handle an event that is not yet readable in order: alerts, events that end them, and membership changes."""
    if (rule := rules.BY_KIND.get(event.kind)) and rule.when(event.data):
        route = _route(rule, event)
        if route.is_on and (route.level or rule.level) == Level.CRITICAL:
            _notify(rule, event)
    _end(event)


def _end(event: Event) -> None:
    ended = rules.ENDS.get(event.kind, ())
    if ended and sql.has_open_problem(event):
        for rule in ended:
            _resolve(rule, event)
        ownership.delete_ownership(event)
    for rule in rules.WITHDRAWS.get(event.kind, ()):
        withdrawal.withdraw(rule, event)
    if event.kind in rules.MEMBERSHIPS:
        live_updates.notify_members_changed(event.organization_id)


def people_of(organization_id: int) -> rules.People:
    """Return the possible recipients in the organization, in the order that its admins set."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True)
    roles = list(members.order_by("alert_order", "pk").values_list("role", "user_id"))
    superusers = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").values_list("pk", flat=True)
    return rules.People(
        [user for role, user in roles if role == Membership.Role.DISPATCHER],
        [user for role, user in roles if role == Membership.Role.ADMIN],
        list(superusers),
    )


def _notify(rule: rules.Rule, event: Event) -> None:
    if Alert.objects.of(event.organization_id).filter(event_id=event.pk).exists():
        return  # handled early, or in an earlier read of the log
    if withdrawal.is_withdrawn(rule, event):
        return
    route = _route(rule, event)
    if not route.is_on or (rule.once_in_s and _was_notified_recently(rule, event)):
        return
    message = rules.message_of(rule, grouping.values_of(rule, event))
    level = route.level or rule.level
    users = _recipients(rule, event, route)
    if not users and not rule.owner:
        log.error("notification_without_recipients", organization=event.organization_id, kind=event.kind)
    if rule.many and level != Level.CRITICAL:
        users = grouping.count_in_earlier(rule, event, users)
    alert = _raise_alert(event, message) if level == Level.CRITICAL else None
    wants = wants_of(event.organization_id, users, rule.kind, is_alert=alert is not None)
    write(event.organization_id, users, wants, event=event, level=level, message=message, alert=alert)
    is_counted = bool(rule.many) and not users
    if not is_counted and not (rule.owner and event.data.get(rule.owner)):
        chat_channels.notify_team(
            event.organization_id, event=event, level=level, message=message, to=route.to or rule.to, alert=alert
        )
    if end := _later_end(rule, event):
        _resolve(rule, end)


def _recipients(rule: rules.Rule, event: Event, route: Route) -> Sequence[int]:
    """Return the ids of the users whom this event notifies: its owners if the rule says so and it has any."""
    owner = event.data.get(rule.owner) if rule.owner else None
    if owner is not None:
        owners = owner if isinstance(owner, list) else [owner]
        people = alert_links.recipients_of(event.organization_id).filter(pk__in=owners)
        return list(people.order_by("pk").values_list("pk", flat=True))
    return rules.choose_recipients(people_of(event.organization_id), route.to or rule.to)


def _route(rule: rules.Rule, event: Event) -> Route:
    return Route.objects.of(event.organization_id).filter(kind=rule.kind).first() or Route()


def _later_end(rule: rules.Rule, event: Event) -> Event | None:
    """Return the first event that already ended this one's cause, if any."""
    later = Event.objects.filter(
        organization_id=event.organization_id,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        kind__in=rule.ends,
        pk__gt=event.pk,
    )
    return later.order_by("pk").first() if rule.ends else None


def write(
    organization_id: int,
    users: Sequence[int],
    wants: dict[int, Wants],
    *,
    event: Event | Alert,
    level: str,
    message: rules.Message,
    alert: Alert | None,
) -> list[Notification]:
    """Write one notification for each user who has none for this event, and its immediate deliveries.

    `event`: the event, or the alert that was made from it. Return all notifications of the event, including
    existing ones.
    """
    event_id = event.event_id if isinstance(event, Alert) else event.pk
    Notification.objects.bulk_create(
        [
            Notification(
                organization_id=organization_id,
                user_id=user,
                alert=alert,
                event_id=event_id,
                kind=event.kind,
                level=level if alert or wants[user].shown else Level.QUIET,
                title=message.title,
                body=message.body,
                subject_type=event.subject_type,
                subject_id=event.subject_id,
            )
            for user in users
        ],
        ignore_conflicts=True,
    )
    written = list(Notification.objects.of(organization_id).filter(event_id=event_id).order_by("pk"))
    at_once = [
        Delivery(organization_id=organization_id, notification=row, channel=channel)
        for row in written
        if row.user_id in wants
        for channel, is_wanted in _at_once(wants[row.user_id], alert)
        if is_wanted
    ]
    if alert is None:
        in_chat = [user for user in users if wants[user].chat]
        at_once += chat_channels.make_deliveries(written, in_chat)
        at_once += _make_pushes(written, [user for user in users if wants[user].push])
    if at_once:
        Delivery.objects.bulk_create(at_once, ignore_conflicts=True)
        notify_loop(EMAIL_LOOP)
        notify_loop(PHONE_LOOP)
        notify_loop(chat_channels.CHAT_LOOP)
        notify_loop(PUSH_LOOP)
    live_updates.notify_written(organization_id, [row.pk for row in written])
    return written


def _make_pushes(rows: Sequence[Notification], users: Sequence[int]) -> list[Delivery]:
    """Return unsaved pushes of these notifications to those of the users who get them in a browser."""
    if not users or not rows:
        return []
    organization_id = rows[0].organization_id
    subscribed = push_subscriptions.subscribed_users(organization_id, users)
    return [
        Delivery(organization_id=organization_id, notification=row, channel=Channel.PUSH)
        for row in rows
        if row.user_id in subscribed
    ]


def _at_once(wants: Wants, alert: Alert | None) -> list[tuple[Channel, bool]]:
    """Return the immediate channels. An alert's others are part of its escalation. `write` adds chat and push."""
    return [(Channel.EMAIL, wants.email), (Channel.SMS, wants.sms and alert is None)]


def _raise_alert(event: Event, message: rules.Message) -> Alert:
    now = clock.now()
    plan = plan_of(event.organization_id)
    alert: Alert = Alert.objects.create(
        organization_id=event.organization_id,
        event_id=event.pk,
        kind=event.kind,
        title=message.title,
        body=message.body,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        created_at=now,
        plan=plan.to_json(),
        next_action_at=now + timedelta(seconds=plan.wait_before(0)),
        next_repeat_at=now + timedelta(seconds=plan.repeat_s),
    )
    alerts.append_alert_event(alert, "alert_raised")
    return alert


def _was_notified_recently(rule: rules.Rule, event: Event) -> bool:
    since = event.at - timedelta(seconds=rule.once_in_s)
    recent = Notification.objects.of(event.organization_id).filter(kind=rule.kind, created_at__gt=since)
    return bool(recent.exists())


def _resolve(rule: rules.Rule, event: Event) -> None:
    how = rules.describe_resolution(event.kind, rule, event.actor_label, event.data)
    alerts.resolve_alerts(event, rule.kind, how)
    notifications = Notification.objects.of(event.organization_id).filter(
        kind=rule.kind,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        settled_at=None,
        event_id__lt=event.pk,
    )
    settled = list(notifications.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    Notification.objects.filter(pk__in=settled).update(settled_at=clock.now(), settled_how=how)
    live_updates.notify_changed(event.organization_id, settled)


def unread_of(user: User, organization_id: int) -> QuerySet:
    """Return the user's unread notifications in the organization."""
    return Notification.objects.of(organization_id).filter(user=user, read_at=None)


def read(user: User, organization_id: int, ids: Iterable[int] | None = None) -> int:
    """Mark the user's notifications read (`ids`, or all). Return how many were unread."""
    rows = unread_of(user, organization_id)
    if ids is not None:
        rows = rows.filter(pk__in=list(ids))
    with transaction.atomic():
        changed = list(rows.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
        Notification.objects.filter(pk__in=changed).update(read_at=clock.now())
        live_updates.notify_changed(organization_id, changed)
    return len(changed)
