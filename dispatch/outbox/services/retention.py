"""Delete old messages that have ended, their attempts, empty groups, and portal links that no longer work.

An ERROR is never deleted, however old: it may block its group, and a user has to decide about it.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Coalesce, Least

from dispatch.core.languages import mark
from dispatch.core.privacy import event_retention, retention
from dispatch.outbox import sql
from dispatch.outbox.models import PortalLink

KEPT_DAYS = 90
LINK_DAYS = 90
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


def delete_expired_links(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` portal links that stopped working before `before`; return how many.

    A link stops when it is revoked, when its session ends, or unopened at its end. Its events stay in the log.
    """
    ended = Least("revoked_at", Coalesce("session_until", "expires_at"))  # without those that are NULL
    old = PortalLink.objects.of(organization_id).annotate(ended=ended).filter(ended__lt=before)
    ids = list(old.order_by("pk").values_list("pk", flat=True)[:limit])
    return PortalLink.objects.filter(pk__in=ids).delete()[0]


def register() -> None:
    """Register the retention rules.

    A message holds its idempotency key, so it is kept at least as long as every other idempotency key.
    """
    retention.register(
        "messages",
        KEPT_DAYS,
        delete_expired_messages,
        label=mark("Messages that have ended"),
        shortest_days=settings.IDEMPOTENCY_KEEP_DAYS,
    )
    retention.register(
        "portal_links", LINK_DAYS, delete_expired_links, label=mark("Portal links that no longer work")
    )
