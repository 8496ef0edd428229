"""Decide what a receiver's response means, and when to retry."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DELIVERED, DEFERRED, FAILED, PERMANENT, LAPSED = "delivered", "deferred", "failed", "permanent", "lapsed"
MIN_DEFERRAL_S = 1.0
NOT_NOW = "The receiver answered that it cannot accept the message now."
TOO_MANY = "The receiver answered 429, too many requests."
# The error class of a deferral that is not the target's: its name was not looked up.
LOOKUP = "lookup"
# The error classes of an access token: not fetched yet (also not the target's), and not available.
TOKEN_PENDING, TOKEN = "token_pending", "token"
# The error class of a client certificate that cannot be used.
CERTIFICATE = "certificate"
# The error class of an attempt that failed in Dispatch itself.
INTERNAL = "internal"
# Outcomes that concern the target's health; a permanent refusal concerns the message.
UNHEALTHY = (FAILED,)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one attempt.

    `delay_s` is the delay that the receiver asks for. `error_class` is a stable key for filters and metrics;
    `error` is a sentence for users.
    """

    outcome: str
    delay_s: float = 0.0
    error_class: str = ""
    error: str = ""

    @property
    def is_of_target(self) -> bool:
        """Return whether the outcome says anything about the target's health."""
        return self.error_class not in (LOOKUP, TOKEN_PENDING, INTERNAL)

    @property
    def spends(self) -> bool:
        """Return whether the attempt counts against the retry budget; a deferral does not."""
        return self.outcome in (DELIVERED, FAILED, PERMANENT)


def judge_response(
    status: int,
    headers: Mapping[str, str],
    body_start: bytes,
    *,
    permanent: Collection[int],
    default_delay_s: float,
    longest_delay_s: float,
    now: datetime,
) -> Verdict:
    """Judge a response by its status code, headers and body.

    A Retry-After of a failure is the shortest delay before its retry.

    2xx: delivered, or deferred if the body is {"ack": false}. 429: deferred. `permanent` codes: an error without
    retries. Everything else, including redirects: failed, to be retried.
    """
    if 200 <= status < 300:
        requested_s = requested_deferral_s(body_start)
        if requested_s is None:
            return Verdict(DELIVERED)
        return Verdict(
            DEFERRED, _within(requested_s or default_delay_s, longest_delay_s), "not_acknowledged", NOT_NOW
        )
    if status == 429:
        wait_s = retry_after_s(headers, now)
        delay_s = _within(default_delay_s if wait_s is None else wait_s, longest_delay_s)
        return Verdict(DEFERRED, delay_s, "too_many_requests", TOO_MANY)
    outcome = PERMANENT if status in permanent else FAILED
    delay_s = min((retry_after_s(headers, now) or 0.0) if outcome == FAILED else 0.0, longest_delay_s)
    return Verdict(outcome, delay_s, error_class=f"http_{status}", error=f"The receiver answered {status}.")


def limit_deferral(verdict: Verdict, since: datetime | None, now: datetime, limit_s: float) -> Verdict:
    """Return the verdict; a deferral of a message that was first deferred `limit_s` ago is a failure."""
    if verdict.outcome != DEFERRED or since is None or (now - since).total_seconds() < limit_s:
        return verdict
    return Verdict(
        FAILED,
        delay_s=verdict.delay_s,
        error_class=verdict.error_class,
        error=f"{verdict.error} It has deferred this message for too long.",
    )


def requested_deferral_s(body_start: bytes) -> float | None:
    """Return the delay that a response {"ack": false, "delaySeconds": n} asks for.

    0 means unspecified; None means that the body is something else.
    """
    if b'"ack"' not in body_start:
        return None
    try:
        body = json.loads(body_start)
    except ValueError:
        return None
    if not isinstance(body, dict) or body.get("ack") is not False:
        return None
    delay = body.get("delaySeconds")
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < float("inf"):
        return 0.0
    return float(delay)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return Retry-After, a number or an HTTP date, in seconds from now.

    Return None if it is missing or malformed.
    """
    value = next((v for k, v in headers.items() if k.lower() == "retry-after"), "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - now).total_seconds())


def retry_delay_s(schedule: Sequence[int], attempts: int, jitter: float, chance: float) -> float | None:
    """Return the seconds until the next retry after `attempts` counted attempts; None if no retry is left.

    Jitter lengthens the delay by the share `jitter * chance`; `chance` is a random number from 0 to 1.
    """
    if attempts > len(schedule):
        return None
    return schedule[attempts - 1] * (1 + jitter * chance)


def _within(seconds: float, longest: float) -> float:
    return min(max(seconds, MIN_DEFERRAL_S), longest)
