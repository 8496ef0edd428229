"""Thresholds that contradict each other are refused at start, each with an id and a hint."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from dispatch.outbox import queues
from dispatch.outbox.processing import LEASE_MARGIN_S

SMALLEST_BATCH = 20


def refuse_contradictions() -> None:
    """Raises ImproperlyConfigured naming all of them: a process that delivers does not start."""
    if found := contradictions():
        raise ImproperlyConfigured(" ".join(str(message.msg) for message in found))


@register()
def contradictions(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """What cannot be, with the settings as they are."""
    s = settings
    wrong = [
        (
            s.OUTBOX_POLL_INTERVAL_S <= 0 or s.OUTBOX_STALE_INTERVAL_S <= 0 or s.OUTBOX_LEASE_INTERVAL_S <= 0,
            "An interval of the outbox is not above 0.",
            "Set OUTBOX_POLL_INTERVAL_S, OUTBOX_STALE_INTERVAL_S and OUTBOX_LEASE_INTERVAL_S to seconds above 0.",
        ),
        (
            s.OUTBOX_BATCH_SIZE < SMALLEST_BATCH,
            f"OUTBOX_BATCH_SIZE is below {SMALLEST_BATCH}.",
            f"Set it to {SMALLEST_BATCH} or more.",
        ),
        (
            s.OUTBOX_GROUPS_AT_ONCE < 1,
            "OUTBOX_GROUPS_AT_ONCE is below 1: nothing would be published.",
            "Set it to 10.",
        ),
        (s.OUTBOX_ROUTER_CALLS < 1, "OUTBOX_ROUTER_CALLS is below 1: nothing would be called.", "Set it to 500."),
        (
            s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S > s.OUTBOX_LEASE_S * 2 / 3,
            "OUTBOX_LEASE_S is too short for OUTBOX_MAX_TIMEOUT_S: a call could outlive its lease.",
            f"Two thirds of the lease must be at least the longest call and {LEASE_MARGIN_S:g} s.",
        ),
        (
            s.OUTBOX_STALE_AFTER_S < s.OUTBOX_LEASE_S or s.OUTBOX_STALE_AFTER_S < 2 * s.OUTBOX_POLL_INTERVAL_S,
            "OUTBOX_STALE_AFTER_S is shorter than a lease or two polls: pointers on their way would be lost.",
            "Set it to 900.",
        ),
        (
            s.OUTBOX_STALE_AFTER_S < s.OUTBOX_STALE_INTERVAL_S,
            "OUTBOX_STALE_INTERVAL_S is longer than OUTBOX_STALE_AFTER_S.",
            "Look more often than that.",
        ),
        (
            s.OUTBOX_VISIBILITY_S < s.OUTBOX_MAX_TIMEOUT_S,
            "OUTBOX_VISIBILITY_S is shorter than a call may take: the queue would hand pointers out twice.",
            "Set it to OUTBOX_LEASE_S.",
        ),
        (
            s.OUTBOX_CIRCUIT_FAILURES < 1 or s.OUTBOX_CIRCUIT_LONGEST_S < s.OUTBOX_CIRCUIT_OPEN_S,
            "The circuit breaker's settings contradict each other.",
            "OUTBOX_CIRCUIT_FAILURES is at least 1, OUTBOX_CIRCUIT_LONGEST_S not below OUTBOX_CIRCUIT_OPEN_S.",
        ),
        (
            any(delay < 0 for delay in s.OUTBOX_RETRY_SCHEDULE_S),
            "OUTBOX_RETRY_SCHEDULE_S has a negative delay.",
            "Give seconds, as 5,30,120.",
        ),
    ]
    return [
        Error(what, hint=hint, id=f"dispatch.E{600 + number}")
        for number, (is_wrong, what, hint) in enumerate(wrong)
        if is_wrong
    ] + _unusable_queue()


def _unusable_queue() -> list[CheckMessage]:
    """A queue that cannot be used as it is set. One that is only not there is a warning, when it is first used."""
    try:
        queues.publisher().close()
    except ImproperlyConfigured as error:
        hint = "Set OUTBOX_QUEUE_TYPE and OUTBOX_QUEUE_URL as docs/outbox.md says."
        return [Error(str(error), hint=hint, id="dispatch.E650")]
    return []
