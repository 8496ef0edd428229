"""Decide when an endpoint has failed for so long that it is disabled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatch.outbox.rules import responses

# Failures further apart than this are separate incidents.
MAX_GAP = timedelta(days=1)
MIN_ATTEMPTS = 10
MIN_MESSAGES = 2
# Status codes that concern the message, not the endpoint.
ABOUT_THE_MESSAGE = (400, 413, 422)
# Errors in Dispatch or in the endpoint's settings.
OWN_ERRORS = ("configuration", responses.INTERNAL)


@dataclass(frozen=True)
class Failures:
    """Failed attempts of a target since its last delivery, each at most MAX_GAP after the previous attempt.

    `messages` is exact up to 1; a higher number only means that several messages failed.
    """

    attempts: int = 0
    messages: int = 0
    message_id: int | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None


def counts(verdict: responses.Verdict, status: int | None) -> bool:
    """Return whether a result counts against the endpoint."""
    if verdict.outcome not in (responses.FAILED, responses.PERMANENT) or verdict.error_class in OWN_ERRORS:
        return False
    return status not in ABOUT_THE_MESSAGE


def add_failure(failures: Failures, message_id: int, at: datetime) -> Failures:
    """Return the failures including one more."""
    if failures.last_at is None or at - failures.last_at > MAX_GAP:
        return Failures(1, 1, message_id, at, at)
    messages = failures.messages + (message_id != failures.message_id)
    last_at = max(at, failures.last_at)
    return Failures(failures.attempts + 1, messages, message_id, failures.first_at, last_at)


def is_lasting(failures: Failures, now: datetime, after: timedelta) -> bool:
    """Return whether the endpoint has failed for `after` and still does."""
    if failures.first_at is None or failures.last_at is None:
        return False
    return (
        failures.attempts >= MIN_ATTEMPTS
        and failures.messages >= MIN_MESSAGES
        and failures.first_at <= now - after
        and failures.last_at > now - MAX_GAP
    )
