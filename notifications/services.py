"""Changes of notifications: written from events, read, acknowledged, settled. Pushes follow the commit."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from django.db import transaction
from django.db.models import Q, QuerySet

from accounts.models import Membership, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.jobs.models import Job
from notifications import push, rules
from notifications.models import Notification

log = structlog.get_logger(__name__)


def handle(batch: list[Event]) -> None:
    """What the event reader calls, in its transaction: alerts are written, settled alerts closed, people told."""
    for event in batch:
        if event.kind in rules.ALERTS:
            _alert(event)
        elif event.kind in rules.SETTLES:
            _settle(event)
        elif event.kind in rules.MEMBERSHIPS:
            push.members_changed(event.organization_id)


def recipients(organization_id: int) -> list[int]:
    """Ids of the users whom an alert of this organization reaches; see `rules.choose`."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True).order_by("pk")
    roles = list(members.values_list("role", "user_id"))
    superusers = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").values_list("pk", flat=True)
    return list(
        rules.choose(
            [user for role, user in roles if role == Membership.Role.DISPATCHER],
            [user for role, user in roles if role == Membership.Role.ADMIN],
            list(superusers),
        )
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


def _alert(event: Event) -> None:
    facts: dict[str, str] = {}
    if job := Job.objects.select_related("service_type").filter(pk=event.subject_id).first():
        facts = {"service": job.service_type.name, "customer": job.customer_name, "place": job.address}
    message = rules.alert_of(event.subject_id, event.data, facts)
    users = recipients(event.organization_id)
    if not users:
        log.error("an alert has nobody to go to", organization=event.organization_id, job=event.subject_id)
    Notification.objects.bulk_create(
        [
            Notification(
                organization_id=event.organization_id,
                user_id=user,
                event_id=event.pk,
                kind=event.kind,
                level=Notification.Level.CRITICAL,
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


def _settle(event: Event) -> None:
    alerts = Notification.objects.of(event.organization_id).filter(
        level=Notification.Level.CRITICAL,
        subject_type=event.subject_type,
        subject_id=event.subject_id,
        settled_at=None,
    )
    settled = list(alerts.select_for_update().order_by("pk").values_list("pk", flat=True))
    how = rules.settled_by(event.kind, event.actor_label, event.data)
    Notification.objects.filter(pk__in=settled).update(settled_at=clock.now(), settled_how=how)
    push.changed(event.organization_id, settled)
