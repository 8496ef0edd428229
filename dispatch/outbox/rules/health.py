"""How an endpoint is doing, as one word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

DISABLED, PAUSED, CIRCUIT_OPEN, PROBING, FAILING, HEALTHY = (
    "disabled", "paused", "circuit_open", "probing", "failing", "healthy",
)  # fmt: skip
STATES = (HEALTHY, FAILING, PROBING, CIRCUIT_OPEN, PAUSED, DISABLED)


@dataclass(frozen=True)
class Condition:
    """What is known of an endpoint and of whoever answers there."""

    is_paused: bool = False
    paused_reason: str = ""
    disabled_at: datetime | None = None
    disabled_reason: str = ""
    failures: int = 0
    failing_since: datetime | None = None
    open_until: datetime | None = None
    last_error: str = ""


@dataclass(frozen=True)
class Health:
    """`state` is one of STATES; `words` says it to a person; `since` is when it began, where that is known."""

    state: str
    words: str
    since: datetime | None = None


def health(seen: Condition, now: datetime, zone: str = "UTC") -> Health:
    """The gravest thing that is true of the endpoint; times are told in `zone`."""
    if seen.disabled_at:
        words = f"Disabled: {_sentence(seen.disabled_reason)} Its messages are kept until it is enabled."
        return Health(DISABLED, words, seen.disabled_at)
    if seen.is_paused:
        reason = f": {_sentence(seen.paused_reason)}" if seen.paused_reason else "."
        return Health(PAUSED, f"Paused{reason} Its messages are kept until it is resumed.")
    if seen.open_until and seen.open_until > now:
        until = _clock(seen.open_until, zone)
        words = f"{_failed(seen)} It is left alone until {until}, then tried with one message."
        return Health(CIRCUIT_OPEN, words, seen.failing_since)
    if seen.open_until:
        words = f"{_failed(seen)} One message tries whether it answers again."
        return Health(PROBING, words, seen.failing_since)
    if seen.failures:
        return Health(FAILING, _failed(seen), seen.failing_since)
    if seen.failing_since:  # it answers, but takes nothing
        why = f": {_sentence(seen.last_error)}" if seen.last_error else "."
        return Health(FAILING, f"It refuses what is sent{why}", seen.failing_since)
    return Health(HEALTHY, "Nothing fails there.")


def _failed(seen: Condition) -> str:
    calls = "The last call" if seen.failures == 1 else f"The last {seen.failures} calls"
    why = f": {_sentence(seen.last_error)}" if seen.last_error else "."
    return f"{calls} failed{why}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else f"{text}."


def _clock(at: datetime, zone: str) -> str:
    return f"{at.astimezone(ZoneInfo(zone)):%H:%M:%S %Z}"
