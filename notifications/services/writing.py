"""Events become notifications, and alerts; ended causes settle them. Runs in the event reader's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from accounts.models import Membership, User
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.queues import wake
from notifications import claims, push, rules
from notifications.facts import facts_of
from notifications.models import Alert, Channel, Delivery, Level, Notification, Route
from notifications.services import alerts
from notifications.services.policies import plan_of
from notifications.services.preferences import Wants, wants_of

log = structlog.get_logger(__name__)

EMAIL_LOOP, PHONE_LOOP = "notifications_email", "notifications_phone"


def handle(batch: list[Event]) -> None:
    """What the event reader calls: notifications are written, ended causes settled, people told."""
    for event in batch:
        if (rule := rules.BY_KIND.get(event.kind)) and rule.when(event.data):
            _notify(rule, event)
        for ended in rules.ENDS.get(event.kind, ()):
            _settle(ended, event)
            claims.settled(event.organization_id, event.subject_type, event.subject_id)
        if event.kind in rules.MEMBERSHIPS:
            push.members_changed(event.organization_id)


def people_of(organization_id: int) -> rules.People:
    """Who could be told in that organization, in the order that its admins set."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True)
    roles = list(members.order_by("alert_order", "pk").values_list("role", "user_id"))
    superusers = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").values_list("pk", flat=True)
    return rules.People(
        [user for role, user in roles if role == Membership.Role.DISPATCHER],
        [user for role, user in roles if role == Membership.Role.ADMIN],
        list(superusers),
    )


def _notify(rule: rules.Rule, event: Event) -> None:
    route = Route.objects.of(event.organization_id).filter(kind=rule.kind).first() or Route()
    if not route.is_on or (rule.once_in_s and _told_lately(rule, event)):
        return
    given = {
        **facts_of(event.subject_type, event.subject_id),
        **event.data,
        **rule.says(event.data),
        "id": event.subject_id,
        "actor": event.actor_label,
    }
    message = rules.message_of(rule, given)
    level = route.level or rule.level
    users = rules.choose(people_of(event.organization_id), route.to or rule.to)
    if not users:
        log.error("a notification has nobody to go to", organization=event.organization_id, kind=event.kind)
    alert = _raise_alert(event, message) if level == Level.CRITICAL else None
    if alert is not None and alert.status != Alert.Status.OPEN:
        return  # the log was read a second time
    wants = wants_of(event.organization_id, users, rule.kind, is_alert=alert is not None)
    write(event.organization_id, users, wants, event=event, level=level, message=message, alert=alert)


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
    """One notification for each user who has none of this event yet, and what leaves the house at once. `event`:
    the event, or the alert that was made from it. Returns all of the event's, also those that were there."""
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
    if at_once:
        Delivery.objects.bulk_create(at_once, ignore_conflicts=True)
        wake(EMAIL_LOOP)
        wake(PHONE_LOOP)
    push.written(organization_id, [row.pk for row in written])
    return written


def _at_once(wants: Wants, alert: Alert | None) -> list[tuple[Channel, bool]]:
    """An alert's texts and calls come with its escalation."""
    return [(Channel.EMAIL, wants.email), (Channel.SMS, wants.sms and alert is None)]


def _raise_alert(event: Event, message: rules.Message) -> Alert:
    now = clock.now()
    plan = plan_of(event.organization_id)
    alert, is_new = Alert.objects.get_or_create(
        organization_id=event.organization_id,
        event_id=event.pk,
        defaults={
            "kind": event.kind,
            "title": message.title,
            "body": message.body,
            "subject_type": event.subject_type,
            "subject_id": event.subject_id,
            "created_at": now,
            "plan": plan.to_json(),
            "next_action_at": now + timedelta(seconds=plan.wait_before(0)),
            "next_repeat_at": now + timedelta(seconds=plan.repeat_s),
        },
    )
    if is_new:
        alerts.note(alert, "alert_raised")
    return alert


def _told_lately(rule: rules.Rule, event: Event) -> bool:
    since = clock.now() - timedelta(seconds=rule.once_in_s)
    told = Notification.objects.of(event.organization_id).filter(kind=rule.kind, created_at__gt=since)
    return bool(told.exists())


def _settle(rule: rules.Rule, event: Event) -> None:
    how = rules.settled_by(event.kind, rule, event.actor_label, event.data)
    alerts.settle(event, rule.kind, how)
    told = Notification.objects.of(event.organization_id).filter(
        kind=rule.kind, subject_type=event.subject_type, subject_id=event.subject_id, settled_at=None
    )
    settled = list(told.select_for_update().order_by("pk").values_list("pk", flat=True))
    Notification.objects.filter(pk__in=settled).update(settled_at=clock.now(), settled_how=how)
    push.changed(event.organization_id, settled)
