"""Send the messages to browsers, in threads with a share for each organization.

A browser gets one message at a time, in order, so that the end of an alert follows the alert. A process that dies
between sending and recording leaves its claim to lapse, and the message is sent again: at least once. The browser
replaces the earlier notification, which has the same tag.
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
from notifications import push_rendering
from notifications.channels import push
from notifications.channels.failure_reasons import Failure
from notifications.models import PushMessage, PushSubscription
from notifications.services import push_keys, push_results, push_subscriptions
from notifications.services.deliveries import CLAIM
from notifications.services.push_keys import from_base64url
from notifications.services.push_messages import OPEN, Purpose, Status
from notifications.turns import order_by_turns

log = structlog.get_logger(__name__)

# Due browsers that one pass looks at.
BATCH = 500
RETRIES_S = (2, 5, 15, 60, 300, 900)
THREADS = FairThreads("push", threads=8, per_key=3, keeps_connection=False)
NOT_IN_TIME = mark_stored("It was not sent in time")
NOT_SENT = mark_stored("The notification could not be sent")
_skipped = RecentlyBlocked(5.0)


class DueMessage(NamedTuple):
    """The first due message to a browser, and since when. `failures`: of the browser, in a row."""

    id: int
    organization_id: int
    subscription_id: int
    failures: int
    since: datetime


# The SQL condition that a message to a browser is due soon, for a loop that rests.
IS_ANY_DUE = """
EXISTS (
    SELECT FROM notifications_pushmessage WHERE status IN ('waiting', 'sending') AND next_attempt_at <= %(soon)s
)
"""


def deliver_due() -> tuple[int, bool]:
    """Start the due messages whose browser and organization have a free thread.

    Return how many were started, and whether others wait for a thread.
    """
    rule, started, has_waiting = FailureRule[int](_skipped.add), 0, False
    for due in _first_due():
        # A failing browser takes no thread that its organization's, or others', working browsers may need.
        if due.failures and THREADS.free <= 4:
            has_waiting = True
            continue
        slot = THREADS.reserve(due.organization_id, due.subscription_id, limit=1 if due.failures else None)
        if slot is None:
            has_waiting = True
            continue
        started += slot.start_claimed(due.id, _claim, _deliver, event="push_failed", rule=rule)
    return started, has_waiting


def next_due() -> datetime | None:
    """Return when the next message to a browser that is not busy is due."""
    waiting = _open().exclude(subscription__in=busy_subscriptions())
    ready = Greatest("next_attempt_at", Coalesce("subscription__paused_until", "next_attempt_at"))
    first: datetime | None = waiting.aggregate(first=Min(ready))["first"]
    return first


def busy_subscriptions() -> set[int]:
    """Return the ids of the browsers to which this process sends now."""
    return set(THREADS.items())


def _open() -> QuerySet[PushMessage]:
    rows: QuerySet[PushMessage] = PushMessage.objects.filter(status__in=OPEN)
    return rows


def _first_due() -> list[DueMessage]:
    """Return the first due message of each browser that is neither busy nor paused; organizations take turns."""
    now = clock.now()
    ready = Q(subscription__paused_until=None) | Q(subscription__paused_until__lte=now)
    due = _open().filter(ready, next_attempt_at__lte=now).exclude(subscription__in=busy_subscriptions())
    first = (
        due.exclude(pk__in=_skipped.keys())
        .order_by("subscription_id", "next_attempt_at", "pk")
        .distinct("subscription_id")
        .values_list("pk", "organization_id", "subscription_id", "subscription__failures", "next_attempt_at")
    )
    rows: list[Any] = list(first)
    return order_by_turns([DueMessage(*row) for row in rows])[:BATCH]


def _claim(message_id: int) -> int | None:
    """Claim a due message; return its id, or None if another process has it."""
    now = clock.now()
    mine = _open().filter(pk=message_id, next_attempt_at__lte=now)
    is_mine = mine.update(status=Status.SENDING, attempts=F("attempts") + 1, next_attempt_at=now + CLAIM)
    return message_id if is_mine else None


def _deliver(message_id: int) -> None:
    """Send a claimed message once and record the result."""
    related = ("organization", "subscription__user", "subscription__technician__organization")
    rows = PushMessage.objects.select_related(*related).defer("subscription__endpoint", "subscription__keys")
    row = rows.filter(pk=message_id).first()
    if row is None or row.status != Status.SENDING:
        return
    subscription = row.subscription
    try:
        rendered = push_rendering.render_push(row)
        if rendered is None:
            push_results.end_message(row, Status.DROPPED)
            return
        if row.expires_at <= clock.now():
            push_results.end_message(row, Status.FAILED, row.error or NOT_IN_TIME)
            return
        fault_injection.crash_point("notifications.push.claimed")
        keys, browser = push_keys.load_keys(), _browser_of(subscription)
        if threading.current_thread() is not threading.main_thread():
            connection.close()  # a service that hangs holds no connection to PostgreSQL
        push.send(browser, rendered.payload, rendered.envelope, keys.private, keys.public)
    except push.NotTaken as error:
        _record_failure(row, error, is_same_key=subscription.server_key == keys.public)
    except Exception:  # such as a template's, or keys that cannot be decrypted
        log.exception("push_send_failed", message=row.pk)
        failure = Failure(NOT_SENT, is_permanent=False)
        _record_failure(row, push.NotTaken(failure), is_same_key=True)
    else:
        fault_injection.crash_point("notifications.push.sent")
        with transaction.atomic():
            if push_results.end_message(row, Status.SENT):
                push_subscriptions.record_success(subscription.pk)


def _browser_of(subscription: PushSubscription) -> push.Browser:
    subscription.refresh_from_db(fields=["endpoint", "keys"])
    return push.Browser(
        subscription.endpoint,
        from_base64url(subscription.keys["p256dh"]),
        from_base64url(subscription.keys["auth"]),
        subscription.organization_id,
    )


def _record_failure(row: PushMessage, error: push.NotTaken, *, is_same_key: bool) -> None:
    failure, now = error.failure, clock.now()
    if error.is_gone or (failure.is_permanent and not is_same_key):
        push_subscriptions.expire(row.subscription_id, failure.reason)
        return
    pause = None
    if not failure.is_permanent and row.purpose != Purpose.TEST and row.attempts <= len(RETRIES_S):
        pause = timedelta(seconds=max(RETRIES_S[row.attempts - 1], failure.wait_s))
        pause = pause if now + pause < row.expires_at else None
    with transaction.atomic():
        push_results.retry_message(row, failure.reason, pause)
        push_subscriptions.record_failure(row.subscription_id, failure)
