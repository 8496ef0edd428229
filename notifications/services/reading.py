"""A user's own notifications are read."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import QuerySet

from accounts.models import User
from dispatch.core import clock
from notifications import push
from notifications.models import Notification


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
