"""What a receiver's answer means, and when to try again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DELIVERED, DEFERRED, FAILED, PERMANENT, LAPSED = "delivered", "deferred", "failed", "permanent", "lapsed"
SHORTEST_DEFERRAL_S = 1.0
# What tells of the target's health; a permanent refusal tells of the message.
UNHEALTHY = (FAILED,)


@dataclass(frozen=True)
class Verdict:
    """`outcome` of one call. `delay_s` is what a deferral asks for. `error_class` is one word for filters and
    metrics, `error` says more."""

    outcome: str
    delay_s: float = 0.0
    error_class: str = ""
    error: str = ""

    @property
    def spends(self) -> bool:
        """Whether it counts against the retries: a deferral is no failure."""
        return self.outcome in (DELIVERED, FAILED, PERMANENT)


def judge(
    status: int,
    headers: Mapping[str, str],
    body_start: bytes,
    *,
    permanent: Collection[int],
    default_delay_s: float,
    longest_delay_s: float,
    now: datetime,
) -> Verdict:
    """What an answer means. 2xx: delivered, unless it says {"ack": false}; 429: put off; `permanent` codes: an
    error without retries; everything else, redirects too: failed, to be tried again."""
    if 200 <= status < 300:
        wish = not_now(body_start)
        if wish is None:
            return Verdict(DELIVERED)
        return Verdict(DEFERRED, _within(wish or default_delay_s, longest_delay_s), "not_acknowledged")
    if status == 429:
        asked = retry_after_s(headers, now)
        return Verdict(
            DEFERRED, _within(default_delay_s if asked is None else asked, longest_delay_s), "too_many_requests"
        )
    outcome = PERMANENT if status in permanent else FAILED
    return Verdict(outcome, error_class=f"http_{status}", error=f"The receiver answered {status}.")


def not_now(body_start: bytes) -> float | None:
    """The delay that an answer {"ack": false, "delaySeconds": n} asks for (0: it names none); None when it is
    no such
    answer."""
    if b'"ack"' not in body_start:
        return None
    try:
        said = json.loads(body_start)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("ack") is not False:
        return None
    delay = said.get("delaySeconds")
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < float("inf"):
        return 0.0
    return float(delay)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Retry-After in seconds from now, given as a number or as an HTTP date; None when there is none to read."""
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
    """Seconds until the next try after `attempts` spent ones, later by up to `jitter` of it (`chance` is 0…1);
    None when the schedule is used up."""
    if attempts > len(schedule):
        return None
    return schedule[attempts - 1] * (1 + jitter * chance)


def _within(seconds: float, longest: float) -> float:
    return min(max(seconds, SHORTEST_DEFERRAL_S), longest)
