"""Delete old messages that have ended, their attempts, and empty groups.

An ERROR is never deleted, however old: it may block its group, and a user has to decide about it.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction

from dispatch.core.privacy import event_retention, retention
from dispatch.outbox import sql

KEPT_DAYS = 90
# Events that matter only while their message is kept: they are half of all events of messages.
STEPS = ["message.queued", "message.processing"]


def delete_expired_messages(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` messages that ended before `before`; return how many.

    The events about their way, STEPS, are deleted with them. This cannot change the order, which depends only on
    messages that have not ended and on ERRORs.
    """
    with transaction.atomic():
        gone = sql.fetch_all(sql.DELETE_ENDED, {"organization": organization_id, "before": before, "limit": limit})
        if groups := sorted({group_id for _, group_id in gone}):
            idle = [row[0] for row in sql.fetch_all(sql.LOCK_IDLE_GROUPS, {"ids": groups})]
            sql.execute(sql.DELETE_EMPTY_GROUPS, {"ids": idle})
        event_retention.delete_steps("message", [message_id for message_id, _ in gone], STEPS)
    return len(gone)


def register() -> None:
    """Register the retention rule.

    A message holds its idempotency key, so it is kept at least as long as every other idempotency key.
    """
    retention.register(
        "messages",
        KEPT_DAYS,
        delete_expired_messages,
        label="Messages that have ended",
        shortest_days=settings.IDEMPOTENCY_KEEP_DAYS,
    )
