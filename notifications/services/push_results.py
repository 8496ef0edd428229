"""Record the results of messages to browsers. Lock order: Delivery → PushMessage → PushSubscription."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction

from dispatch.core import clock
from notifications import metrics
from notifications.models import Delivery, PushMessage
from notifications.services import deliveries
from notifications.services.push_messages import OPEN, Purpose, Status


def end_message(row: PushMessage, status: str, why: str = "") -> bool:
    """End the message, and report it to its delivery. Return False if its status has changed since it was read."""
    with transaction.atomic():
        if row.purpose == Purpose.ALERT:
            Delivery.objects.select_for_update(no_key=True).filter(pk=row.subject_id).first()
        mine = PushMessage.objects.filter(pk=row.pk, status=row.status, attempts=row.attempts)
        if not mine.update(status=status, next_attempt_at=None, ended_at=clock.now(), error=why[:255]):
            return False
        metrics.pushes.labels(row.purpose, status).inc()
        if row.purpose == Purpose.ALERT:
            deliveries.report_push(row.subject_id)
    return True


def retry_message(row: PushMessage, why: str, again_in: timedelta | None) -> None:
    """Record why a claimed message was not sent, and retry it after this time; None: it failed."""
    if again_in is None:
        end_message(row, Status.FAILED, why)
        return
    mine = PushMessage.objects.filter(pk=row.pk, status=Status.SENDING, attempts=row.attempts)
    mine.update(status=Status.WAITING, next_attempt_at=clock.now() + again_in, error=why[:255])


def fail_open_messages(subscription_id: int, reason: str) -> None:
    """End the messages to a browser that has gone. Call it outside any transaction."""
    for row in PushMessage.objects.filter(subscription=subscription_id, status__in=OPEN).order_by("pk"):
        end_message(row, Status.FAILED, reason)
