"""Changes of notifications: written from events, read, acknowledged, settled. Pushes follow the commit."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Q, QuerySet

from accounts.models import Membership, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import Event
from notifications import claims, push, rules
from notifications.facts import facts_of
from notifications.models import Notification

log = structlog.get_logger(__name__)


def handle(batch: list[Event]) -> None:
    """What the event reader calls, in its transaction: notifications are written, ended causes settled, people
    told."""
    for event in batch:
        if (rule := rules.BY_KIND.get(event.kind)) and rule.when(event.data):
            _notify(rule, event)
        for ended in rules.ENDS.get(event.kind, ()):
            _settle(ended, event)
            claims.settled(event.organization_id, event.subject_type, event.subject_id)
        if event.kind in rules.MEMBERSHIPS:
            push.members_changed(event.organization_id)


def people_of(organization_id: int) -> rules.People:
    """Who could be told in that organization."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True).order_by("pk")
    roles = list(members.values_list("role", "user_id"))
    superusers = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").values_list("pk", flat=True)
    return rules.People(
        [user for role, user in roles if role == Membership.Role.DISPATCHER],
        [user for role, user in roles if role == Membership.Role.ADMIN],
        list(superusers),
    )


def unread_of(user: User, organization_id: int) -> QuerySet:
    """The user's unread notifications there."""
    return Notification.objects.of(organization_id).filter(user=user, read_at=None)


def read(user: User, organization_id: int, ids: Iterable[int] | None = None) -> int:
    """Marks the user's notifications read (`ids`, or all of theirs); returns how many were not yet."""
    rows = unread_of(user, organization_id)
    if ids is not None:
        rows = rows.filter(pk__in=list(ids))
    with transaction.atomic():
        changed = list(rows.select_for_update().values_list("pk", flat=True))
        Notification.objects.filter(pk__in=changed).update(read_at=clock.now())
        push.changed(organization_id, changed)
    return len(changed)


def acknowledge(notification_id: int, *, user: User, actor: Actor) -> Notification:
    """Takes note of it; the second one changes nothing, and the row says who was first.

    Of an alert it counts for everybody in the organization: whoever acknowledges has taken it on."""
    with transaction.atomic():
        row = Notification.objects.get(pk=notification_id, user=user)
        mine = Q(pk=row.pk)
        if row.level == Notification.Level.CRITICAL:
            mine = Q(organization_id=row.organization_id, event_id=row.event_id)
        now = clock.now()
        rows = Notification.objects.filter(mine).select_for_update().order_by("pk")
        waiting = [found.pk for found in rows if found.acknowledged_at is None]
        if waiting:
            Notification.objects.filter(pk__in=waiting).update(acknowledged_at=now, acknowledged_by=user)
            Notification.objects.filter(pk=row.pk, read_at=None).update(read_at=now)
            if row.level == Notification.Level.CRITICAL:
                kind = f"{row.subject_type}.alert_acknowledged"
                events.append(row.organization_id, kind, row.subject_id, actor=actor, event_id=row.event_id)
            push.changed(row.organization_id, waiting)
    return Notification.objects.select_related("acknowledged_by").get(pk=row.pk)


def _notify(rule: rules.Rule, event: Event) -> None:
    if rule.once_in_s and _told_lately(rule, event):
        return
    given = {
        **facts_of(event.subject_type, event.subject_id),
        **event.data,
        "id": event.subject_id,
        "actor": event.actor_label,
    }
    message = rules.message_of(rule, given)
    users = rules.choose(people_of(event.organization_id), rule.to)
    if not users:
        log.error("a notification has nobody to go to", organization=event.organization_id, kind=event.kind)
    Notification.objects.bulk_create(
        [
            Notification(
                organization_id=event.organization_id,
                user_id=user,
                event_id=event.pk,
                kind=event.kind,
                level=rule.level,
                title=message.title,
                body=message.body,
                subject_type=event.subject_type,
                subject_id=event.subject_id,
            )
            for user in users
        ],
        ignore_conflicts=True,
    )
    written = Notification.objects.filter(organization_id=event.organization_id, event_id=event.pk)
    push.written(event.organization_id, list(written.values_list("pk", flat=True)))


def _told_lately(rule: rules.Rule, event: Event) -> bool:
    since = clock.now() - timedelta(seconds=rule.once_in_s)
    told = Notification.objects.of(event.organization_id).filter(kind=rule.kind, created_at__gt=since)
    return bool(told.exists())


def _settle(rule: rules.Rule, event: Event) -> None:
    told = Notification.objects.of(event.organization_id).filter(
        kind=rule.kind, subject_type=event.subject_type, subject_id=event.subject_id, settled_at=None
    )
    settled = list(told.select_for_update().order_by("pk").values_list("pk", flat=True))
    how = rules.settled_by(event.kind, rule, event.actor_label, event.data)
    Notification.objects.filter(pk__in=settled).update(settled_at=clock.now(), settled_how=how)
    push.changed(event.organization_id, settled)
