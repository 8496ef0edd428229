"""Send the deliveries that go to chat services and webhooks, in threads.

Each kind has its own threads with a share for each organization, and a channel sends one message at a time. A
service that hangs therefore delays its own messages only. A process that dies between sending and recording
leaves its claim to lapse, and the message is sent again: at least once. Matrix recognizes the repetition by its
transaction, and a webhook by its Idempotency-Key.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import structlog
from django.db import connection, transaction
from django.db.models import F, Min, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest

from dispatch.core import clock, fault_injection
from dispatch.core.db.isolation import FailureRule
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.core.stored_texts import mark_stored
from notifications import rendering
from notifications.channels import chat
from notifications.channels.failure_reasons import Failure
from notifications.models import AlertChannel, Channel, Delivery
from notifications.services import alert_links, chat_channels
from notifications.services.deliveries import (
    CLAIM,
    end_delivery,
    find_obstacle,
    is_needed,
    open_deliveries,
    retry_later,
)
from notifications.turns import order_by_turns

log = structlog.get_logger(__name__)

Status = Delivery.Status
# Due channels that one pass looks at.
BATCH = 500
RETRIES_S = (5, 15, 60, 300, 900)
# A message that was not taken for this long is given up. Alerts have escalated meanwhile.
PATIENCE = timedelta(hours=1)
THREADS = {
    kind: FairThreads(f"chat_{kind}", threads=8, per_key=3, keeps_connection=False)
    for kind in AlertChannel.Kind.values
}
NOT_SENT = mark_stored("The message could not be sent")
_skipped = RecentlyBlocked(5.0)


class DueDelivery(NamedTuple):
    """The first due delivery of a channel, and since when. `failures`: of the channel, in a row."""

    id: int
    organization_id: int
    channel_id: int
    kind: str
    failures: int
    since: datetime


def deliver_due() -> tuple[int, bool]:
    """Start the due deliveries whose channel and organization have a free thread.

    Return how many were started, and whether others wait for a thread.
    """
    rule, started, has_waiting = FailureRule[int](_skipped.add), 0, False
    for due in _first_due():
        threads = THREADS[due.kind]
        # A failing channel takes no thread that its organization's, or others', working channels may need.
        limit = 1 if due.failures else None
        if due.failures and threads.free <= 4:
            has_waiting = True
            continue
        slot = threads.reserve(due.organization_id, due.channel_id, limit=limit)
        if slot is None:
            has_waiting = True
            continue
        started += slot.start_claimed(due.id, _claim, _deliver, event="delivery_failed", rule=rule)
    return started, has_waiting


def next_due() -> datetime | None:
    """Return when the next delivery to a channel that is not busy is due."""
    waiting = _open().exclude(destination__in=busy_channels())
    ready = Greatest("next_attempt_at", Coalesce("destination__paused_until", "next_attempt_at"))
    first: datetime | None = waiting.aggregate(first=Min(ready))["first"]
    return first


def _open() -> QuerySet[Delivery]:
    return open_deliveries().filter(channel=Channel.CHAT)


def busy_channels() -> set[int]:
    """Return the ids of the channels to which this process sends now."""
    return {pk for threads in THREADS.values() for pk in threads.items()}


def _first_due() -> list[DueDelivery]:
    """Return the first due delivery of each channel that is neither busy nor paused; organizations take turns."""
    now = clock.now()
    ready = Q(destination__paused_until=None) | Q(destination__paused_until__lte=now)
    due = _open().filter(ready, next_attempt_at__lte=now).exclude(destination__in=busy_channels())
    first = (
        due.exclude(pk__in=_skipped.keys())
        .order_by("destination_id", "next_attempt_at", "pk")
        .distinct("destination_id")
        .values_list("pk", "organization_id", "destination_id", "destination__kind", "destination__failures",
                     "next_attempt_at")
    )  # fmt: skip
    rows: list[Any] = list(first)
    return order_by_turns([DueDelivery(*row) for row in rows])[:BATCH]


def _claim(delivery_id: int) -> int | None:
    """Claim a due delivery; return its id, or None if another process has it."""
    now = clock.now()
    mine = _open().filter(pk=delivery_id, next_attempt_at__lte=now)
    is_mine = mine.update(status=Status.SENDING, attempts=F("attempts") + 1, next_attempt_at=now + CLAIM)
    return delivery_id if is_mine else None


def _deliver(delivery_id: int) -> None:
    """Send a claimed delivery once and record the result."""
    row = (
        Delivery.objects.select_related(
            "notification__user",
            "notification__organization",
            "notification__alert",
            "organization",
            "destination",
        )
        .defer("destination__config")
        .get(pk=delivery_id)
    )
    channel = row.destination
    if channel is None or row.status != Status.SENDING:
        return
    is_test = row.notification.kind == chat_channels.TEST_KIND
    try:
        why = find_obstacle(row)
        if why or channel.removed_at is not None or not is_needed(row.notification):
            end_delivery(row, Status.DROPPED, why)
            return
        if channel.stopped_at is not None and not is_test:
            end_delivery(row, Status.FAILED, channel.error)
            return
        fault_injection.crash_point("notifications.chat.claimed")
        message = rendering.render_chat(row, alert_links.acknowledge_url(row))
        channel.refresh_from_db(fields=["config"])
        if threading.current_thread() is not threading.main_thread():
            connection.close()  # a service that hangs holds no connection to PostgreSQL
        chat.send(channel, message)
    except chat.NotTaken as error:
        _record_failure(row, channel, error.failure, is_test=is_test)
    except Exception:  # such as a template's, or a config that no key can decrypt
        log.exception("notification_send_failed", delivery=row.pk, channel=row.channel)
        _record_failure(row, channel, Failure(NOT_SENT, is_permanent=False), is_test=is_test)
    else:
        fault_injection.crash_point("notifications.chat.sent")
        with transaction.atomic():
            end_delivery(row, Status.SENT)
            chat_channels.record_success(channel.pk)


def _record_failure(row: Delivery, channel: AlertChannel, failure: Failure, *, is_test: bool) -> None:
    pause = None
    if not (failure.is_permanent or is_test) and row.attempts <= len(RETRIES_S):
        pause = timedelta(seconds=max(RETRIES_S[row.attempts - 1], failure.wait_s))
        pause = pause if clock.now() + pause < row.created_at + PATIENCE else None
    with transaction.atomic():
        retry_later(row, failure.reason, pause)
        chat_channels.record_failure(channel.pk, failure, is_test=is_test)
