"""Write the messages to browsers; `push_deliveries` sends them.

Each person gets a message in each of their browsers. A browser that is being removed meanwhile is skipped: these
statements run in the transactions of alerts and jobs, which no push may fail.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Q

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.runtime.queues import notify_loop
from notifications.models import Alert, Channel, Delivery, Level, PushMessage, PushSubscription

PUSH_LOOP = "notifications_push"
Purpose, Status = PushMessage.Purpose, PushMessage.Status
OPEN = (Status.WAITING, Status.SENDING)
# How long a message is worth sending, and a push service keeps it for a browser that is not connected.
ALERT_LIFETIME, NEWS_LIFETIME = timedelta(hours=1), timedelta(hours=4)
CLOSE_LIFETIME, TEST_LIFETIME = timedelta(hours=1), timedelta(minutes=2)

# KEY SHARE keeps the browsers until the end of the transaction, as the foreign key demands.
_WRITE = """
INSERT INTO notifications_pushmessage (
    organization_id, subscription_id, purpose, subject_id, attempt, status, attempts, next_attempt_at, expires_at,
    error, created_at
)
SELECT organization_id, id, %(purpose)s::text, %(subject_id)s::bigint, %(attempt)s::integer, 'waiting', 0,
       %(now)s::timestamptz, %(until)s::timestamptz, '', %(now)s::timestamptz
FROM (
    SELECT organization_id, id FROM notifications_pushsubscription
    WHERE {condition} FOR KEY SHARE SKIP LOCKED
) browser
ON CONFLICT (subscription_id, purpose, subject_id, attempt) DO NOTHING
"""
_OF_USER = _WRITE.format(condition="organization_id = %(organization_id)s AND user_id = %(owner)s")
_OF_TECHNICIAN = _WRITE.format(condition="technician_id = %(owner)s")
_BY_ID = _WRITE.format(condition="id = ANY(%(owner)s::bigint[])")


def write_for_delivery(row: Delivery) -> int:
    """Write the messages of a user's delivery, one for each of their browsers. Return how many there are."""
    lifetime = ALERT_LIFETIME if row.notification.level == Level.CRITICAL else NEWS_LIFETIME
    _write(
        _OF_USER, row.notification.user_id, Purpose.ALERT, row.pk, until=row.created_at + lifetime,
        organization_id=row.organization_id,
    )  # fmt: skip
    return PushMessage.objects.filter(purpose=Purpose.ALERT, subject_id=row.pk).count()


def write_for_technician(technician_id: int, purpose: str, subject_id: int, attempt: int, until: datetime) -> None:
    """Write the messages to a technician's browsers, in one statement: few technicians have any."""
    _write(_OF_TECHNICIAN, technician_id, purpose, subject_id, attempt=attempt, until=until)


def write_test(subscription: PushSubscription, event_id: int) -> None:
    """Write a test message to one browser."""
    _write(_BY_ID, [subscription.pk], Purpose.TEST, event_id, until=clock.now() + TEST_LIFETIME)


def close_alert(alert: Alert) -> None:
    """Let the browsers that show an alert close it, and drop what waits. Call it in the transaction of the end."""
    _close(Purpose.CLOSE, alert.pk, alert.returns, notification__alert=alert)


def close_withdrawn(notification_id: int) -> None:
    """Let the browsers that show a withdrawn notification close it, and drop what waits, in its transaction."""
    _close(Purpose.WITHDRAWAL, notification_id, 0, notification=notification_id)


def _close(purpose: str, subject_id: int, attempt: int, **of_what: Any) -> None:
    deliveries = Delivery.objects.filter(channel=Channel.PUSH, **of_what)
    ids = list(deliveries.order_by("pk").values_list("pk", flat=True))
    if not ids:
        return
    messages = PushMessage.objects.filter(purpose=Purpose.ALERT, subject_id__in=ids)
    tried = messages.filter(Q(attempts__gt=0) | Q(status=Status.SENDING)).exclude(status=Status.FAILED)
    browsers = list(tried.order_by().values_list("subscription_id", flat=True).distinct())
    messages.filter(status=Status.WAITING).update(
        status=Status.DROPPED, next_attempt_at=None, ended_at=clock.now()
    )
    if browsers:
        _write(_BY_ID, browsers, purpose, subject_id, attempt=attempt, until=clock.now() + CLOSE_LIFETIME)


def _write(
    statement: str,
    owner: Any,
    purpose: str,
    subject_id: int,
    *,
    until: datetime,
    attempt: int = 0,
    organization_id: int = 0,
) -> None:
    values: dict[str, Any] = {
        "owner": owner, "purpose": purpose, "subject_id": subject_id, "attempt": attempt, "until": until,
        "organization_id": organization_id, "now": clock.now(),
    }  # fmt: skip
    counts: list[int] = []
    prepared.change_later(statement, values, then=lambda result: counts.append(result.rowcount))
    transaction.on_commit(partial(_notify_if_any, counts), robust=True)


def _notify_if_any(counts: list[int]) -> None:
    if any(counts):
        notify_loop(PUSH_LOOP)
