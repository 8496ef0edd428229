"""What is old and settled is deleted: messages that have ended, their attempts, and groups without messages.

An ERROR never is, however old: it may stop its group, and somebody is to decide about it."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction

from dispatch.core import retention
from dispatch.outbox import sql

KEPT_DAYS = 90


def forget(organization_id: int, before: datetime, limit: int) -> int:
    """Deletes up to `limit` messages that ended before `before`; how many. Order does not change by it: it hangs
    only on messages that have not ended, and on ERRORs."""
    with transaction.atomic():
        gone = sql.rows(sql.FORGET, {"organization": organization_id, "before": before, "limit": limit})
        if groups := sorted({group_id for _, group_id in gone}):
            idle = [row[0] for row in sql.rows(sql.LOCK_IDLE_GROUPS, {"ids": groups})]
            sql.do(sql.FORGET_GROUPS, {"ids": idle})
    return len(gone)


def register() -> None:
    """An idempotency key is remembered with its message, and not for less long than any other."""
    retention.register(
        "messages",
        KEPT_DAYS,
        forget,
        label="Messages that have ended",
        shortest_days=settings.IDEMPOTENCY_KEEP_DAYS,
    )
