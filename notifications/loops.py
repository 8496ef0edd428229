"""What the dispatcher process runs for notifications: the notifier, the escalation, and who sends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.conf import settings

from dispatch.core import clock
from dispatch.core.loops import Loop
from dispatch.core.readers import EventReader
from notifications import rules
from notifications.models import Channel
from notifications.services import delivering, escalating, writing
from notifications.services.writing import EMAIL_LOOP, PHONE_LOOP

reader = EventReader("notifications", writing.handle, rules.KINDS)
SOONEST_S = 0.05


def step() -> float | None:
    """One batch of events; again at once while there are more."""
    return 0 if reader.step() else None


def escalate() -> float | None:
    """Moves on the alerts that are due, and shows those again that nobody has acknowledged."""
    busy = escalating.escalate_due() >= escalating.BATCH or escalating.repeat_due() >= escalating.BATCH
    return 0 if busy else _until(escalating.next_due, settings.ALERT_LOOP_INTERVAL_S)


def send_email() -> float | None:
    return _send(Channel.EMAIL)


def use_phone() -> float | None:
    """Calls and texts."""
    return _send(Channel.SMS, Channel.VOICE)


def _send(*channels: Channel) -> float | None:
    busy = delivering.deliver_due(*channels) >= delivering.BATCH
    return 0 if busy else _until(lambda: delivering.next_due(*channels), settings.ALERT_LOOP_INTERVAL_S)


def _until(next_due: Callable[[], datetime | None], most_s: float) -> float:
    coming = next_due()
    if coming is None:
        return most_s
    return min(max((coming - clock.now()).total_seconds(), SOONEST_S), most_s)


LOOPS = [
    Loop("notifier", step, settings.EVENT_READER_INTERVAL_S, elected=True),
    Loop("notifications_escalation", escalate, settings.ALERT_LOOP_INTERVAL_S, elected=True),
    Loop(EMAIL_LOOP, send_email, settings.ALERT_LOOP_INTERVAL_S, elected=True),
    Loop(PHONE_LOOP, use_phone, settings.ALERT_LOOP_INTERVAL_S, elected=True),
]
