"""Check the outbox's settings for contradictions; each check has an id and a hint."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from dispatch.outbox import queues
from dispatch.outbox.processor import LEASE_MARGIN_S

SMALLEST_BATCH = 20


def refuse_contradictions() -> None:
    """Raise ImproperlyConfigured, listing every contradiction, so that the dispatcher process does not start."""
    if errors := contradictions():
        raise ImproperlyConfigured(" ".join(str(message.msg) for message in errors))


@register()
def contradictions(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Return a check message for each contradiction in the settings."""
    s = settings
    rules = [
        (
            s.OUTBOX_POLL_INTERVAL_S <= 0 or s.OUTBOX_STALE_INTERVAL_S <= 0 or s.OUTBOX_LEASE_INTERVAL_S <= 0,
            "An outbox interval is not greater than 0.",
            "Set OUTBOX_POLL_INTERVAL_S, OUTBOX_STALE_INTERVAL_S and OUTBOX_LEASE_INTERVAL_S to more than 0.",
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
        (
            s.OUTBOX_ROUTER_CALLS < 1,
            "OUTBOX_ROUTER_CALLS is below 1: nothing would be delivered.",
            "Set it to 500.",
        ),
        (
            s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S > s.OUTBOX_LEASE_S * 2 / 3,
            "OUTBOX_LEASE_S is too short for OUTBOX_MAX_TIMEOUT_S: an attempt could outlive its lease.",
            f"Two thirds of the lease must be at least the longest attempt plus {LEASE_MARGIN_S:g} s.",
        ),
        (
            s.OUTBOX_STALE_AFTER_S < s.OUTBOX_LEASE_S or s.OUTBOX_STALE_AFTER_S < 2 * s.OUTBOX_POLL_INTERVAL_S,
            "OUTBOX_STALE_AFTER_S is shorter than a lease or two polls: pointers in transit would be lost.",
            "Set it to 900.",
        ),
        (
            s.OUTBOX_STALE_AFTER_S < s.OUTBOX_STALE_INTERVAL_S,
            "OUTBOX_STALE_INTERVAL_S is longer than OUTBOX_STALE_AFTER_S.",
            "Set it to OUTBOX_STALE_AFTER_S or less.",
        ),
        (
            not 1 <= s.OUTBOX_REPUBLISH_AFTER_S < s.OUTBOX_STALE_AFTER_S,
            "OUTBOX_REPUBLISH_AFTER_S is below 1 or not below OUTBOX_STALE_AFTER_S.",
            "Set it to 12.",
        ),
        (
            s.OUTBOX_VISIBILITY_S < s.OUTBOX_MAX_TIMEOUT_S,
            "OUTBOX_VISIBILITY_S is shorter than an attempt may take: the queue would deliver pointers twice.",
            "Set it to OUTBOX_LEASE_S.",
        ),
        (
            s.OUTBOX_CIRCUIT_FAILURES < 1 or s.OUTBOX_CIRCUIT_LONGEST_S < s.OUTBOX_CIRCUIT_OPEN_S,
            "The circuit breaker's settings contradict each other.",
            (
                "OUTBOX_CIRCUIT_FAILURES must be at least 1, and OUTBOX_CIRCUIT_LONGEST_S at least "
                "OUTBOX_CIRCUIT_OPEN_S."
            ),
        ),
        (
            any(delay < 0 for delay in s.OUTBOX_RETRY_SCHEDULE_S),
            "OUTBOX_RETRY_SCHEDULE_S contains a negative delay.",
            "List seconds of 0 or more, such as 5,30,120.",
        ),
    ]
    return [
        Error(problem, hint=hint, id=f"dispatch.E{600 + number}")
        for number, (is_wrong, problem, hint) in enumerate(rules)
        if is_wrong
    ] + _unusable_queue()


def _unusable_queue() -> list[CheckMessage]:
    """Return an error if the queue is misconfigured.

    A queue that is only unreachable causes a warning on first use.
    """
    try:
        queues.publisher().close()
    except ImproperlyConfigured as error:
        hint = "Set OUTBOX_QUEUE_TYPE and OUTBOX_QUEUE_URL as described in docs/guides/outbox.md."
        return [Error(str(error), hint=hint, id="dispatch.E650")]
    return []
