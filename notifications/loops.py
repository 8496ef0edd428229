"""Loops of the dispatcher process for notifications: event reader, escalation, email, phone, chat and push."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog
from django.conf import settings

from accounts.models import Membership
from dispatch.core import clock
from dispatch.core.events.early_reader import EarlyReader
from dispatch.core.events.readers import EventReader
from dispatch.core.runtime.loops import Loop, NothingSucceeded
from notifications import heartbeat, rules
from notifications.models import Channel
from notifications.services import chat_deliveries, deliveries, escalation, notifications, push_deliveries
from notifications.services.chat_channels import CHAT_LOOP
from notifications.services.notifications import EMAIL_LOOP, PHONE_LOOP
from notifications.services.push_messages import PUSH_LOOP

log = structlog.get_logger(__name__)

# No key: `handle` is correct in any order (see there).
reader = EventReader(
    "notifications",
    notifications.handle,
    rules.KINDS,
    recipients=Membership.objects.all(),
    most=notifications.MAX_NOTIFICATIONS,
)
early = EarlyReader(reader, notifications.handle_early)
SOONEST_S = 0.05
# A pass that finds no free thread, or a channel that is busy, looks again after this time (seconds).
THREAD_WAIT_S = 0.25


def step() -> float | None:
    """Handle one batch of events in order, then urgent events out of order. Return 0 after a full batch.

    Fewer events are no reason to look again at once: while jobs are going on, each pass would find one or two.
    Raises NothingSucceeded if the reader cannot move: urgent events are handled all the same, at the usual
    interval.
    """
    try:
        reader.step()
    except Exception as error:
        log.exception("events_not_handled", reader=reader.name)
        early.step()
        raise NothingSucceeded(1) from error
    return 0 if early.step() >= reader.batch or reader.has_more else None


def escalate() -> float | None:
    """Open alerts again that nothing has followed, escalate due ones, and repeat open ones on screens."""
    steps = (escalation.return_due(), escalation.escalate_due(), escalation.repeat_due())
    busy = max(steps) >= escalation.BATCH
    return 0 if busy else _until(escalation.next_due, settings.ALERT_LOOP_INTERVAL_S)


def send_email() -> float | None:
    """Send due emails."""
    return _send(*deliveries.EMAIL)


def use_phone() -> float | None:
    """Send due calls and texts."""
    return _send(*deliveries.PHONE)


def send_chat() -> float | None:
    """Start due messages to chat services and webhooks."""
    started, has_waiting = chat_deliveries.deliver_due()
    if has_waiting or chat_deliveries.busy_channels():
        return min(THREAD_WAIT_S, settings.ALERT_LOOP_INTERVAL_S)
    if started:
        return 0
    return _until(chat_deliveries.next_due, settings.ALERT_LOOP_INTERVAL_S)


def send_push() -> float | None:
    """Write the messages of due pushes, and start the due messages to browsers."""
    written = deliveries.deliver_due(*deliveries.PUSH)
    started, has_waiting = push_deliveries.deliver_due()
    if has_waiting or push_deliveries.busy_subscriptions():
        return min(THREAD_WAIT_S, settings.ALERT_LOOP_INTERVAL_S)
    if started or written >= deliveries.BATCH:
        return 0
    coming = [push_deliveries.next_due(), deliveries.next_due(*deliveries.PUSH)]
    return _until(lambda: min(filter(None, coming), default=None), settings.ALERT_LOOP_INTERVAL_S)


def _send(*channels: Channel) -> float | None:
    busy = deliveries.deliver_due(*channels) >= deliveries.BATCH
    return 0 if busy else _until(lambda: deliveries.next_due(*channels), settings.ALERT_LOOP_INTERVAL_S)


def _until(next_due: Callable[[], datetime | None], most_s: float) -> float | None:
    """Return the seconds until the next is due, or None if that is more than `most_s` away."""
    coming = next_due()
    if coming is None or (wait_s := (coming - clock.now()).total_seconds()) > most_s:
        return None
    return max(wait_s, SOONEST_S)


LOOPS = [
    Loop("notifier", step, settings.EVENT_READER_INTERVAL_S, elected=True, due=reader.is_due()),
    Loop(
        "notifications_escalation",
        escalate,
        settings.ALERT_LOOP_INTERVAL_S,
        elected=True,
        due=escalation.IS_ANY_DUE,
    ),
    Loop(
        EMAIL_LOOP,
        send_email,
        settings.ALERT_LOOP_INTERVAL_S,
        elected=True,
        limit_s=300.0,
        due=deliveries.is_any_due(*deliveries.EMAIL),
    ),
    *(
        Loop(name, send, settings.ALERT_LOOP_INTERVAL_S, elected=True, due=due)
        for name, send, due in (
            (PHONE_LOOP, use_phone, deliveries.is_any_due(*deliveries.PHONE)),
            (CHAT_LOOP, send_chat, deliveries.is_any_due(Channel.CHAT)),
            (PUSH_LOOP, send_push, f"({deliveries.is_any_due(*deliveries.PUSH)} OR {push_deliveries.IS_ANY_DUE})"),
        )
    ),
    Loop(heartbeat.LOOP, heartbeat.send_heartbeat, settings.HEARTBEAT_INTERVAL_S, elected=True),
]
