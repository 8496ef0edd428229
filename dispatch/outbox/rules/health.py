"""Assess an endpoint's health as one state and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from dispatch.core.languages import gettext as _

DISABLED, PAUSED, CIRCUIT_OPEN, PROBING, FAILING, DEFERRING, HEALTHY = (
    "disabled", "paused", "circuit_open", "probing", "failing", "deferring", "healthy",
)  # fmt: skip
STATES = (HEALTHY, DEFERRING, FAILING, PROBING, CIRCUIT_OPEN, PAUSED, DISABLED)


@dataclass(frozen=True)
class Condition:
    """The facts about an endpoint and its receiver from which its health is assessed."""

    is_paused: bool = False
    paused_reason: str = ""
    disabled_at: datetime | None = None
    disabled_reason: str = ""
    failures: int = 0
    failing_since: datetime | None = None
    open_until: datetime | None = None
    probe_until: datetime | None = None
    last_error: str = ""
    deferring_since: datetime | None = None


@dataclass(frozen=True)
class Health:
    """An endpoint's health.

    `state` is one of STATES, `words` describes it, and `since` is when the state began, if known.
    """

    state: str
    words: str
    since: datetime | None = None


def assess_health(seen: Condition, now: datetime, zone: str = "UTC") -> Health:
    """Return the most severe condition of the endpoint; times are shown in `zone`."""
    if seen.disabled_at:
        words = _("Disabled: {reason} Messages are kept until you enable it.")
        return Health(DISABLED, words.format(reason=_sentence(_(seen.disabled_reason))), seen.disabled_at)
    if seen.is_paused:
        if not seen.paused_reason:
            return Health(PAUSED, _("Paused. Messages are kept until you resume it."))
        words = _("Paused: {reason} Messages are kept until you resume it.")
        return Health(PAUSED, words.format(reason=_sentence(seen.paused_reason)))
    if seen.open_until and seen.open_until > now:
        until = _clock(seen.open_until, zone)
        words = _("{failure} Delivery stops until {until}; then one message is tried.")
        return Health(CIRCUIT_OPEN, words.format(failure=_failed(seen), until=until), seen.failing_since)
    if seen.open_until:
        words = _("{failure} The next message will test whether it responds again.")
        if seen.probe_until and seen.probe_until > now:
            words = _("{failure} One message is testing whether it responds again.")
        return Health(PROBING, words.format(failure=_failed(seen)), seen.failing_since)
    if seen.failures:
        return Health(FAILING, _failed(seen), seen.failing_since)
    if seen.failing_since:  # it responds, but accepts nothing
        why = f": {_sentence(seen.last_error)}" if seen.last_error else "."
        return Health(FAILING, _("It rejects messages") + why, seen.failing_since)
    if seen.deferring_since:
        words = _("It responds, but has accepted no message since {time}.")
        words = words.format(time=_clock(seen.deferring_since, zone))
        return Health(DEFERRING, words, seen.deferring_since)
    return Health(HEALTHY, _("No recent failures."))


def _failed(seen: Condition) -> str:
    one, many = _("The last attempt failed"), _("The last {count} attempts failed")
    failed = one if seen.failures == 1 else many
    why = f": {_sentence(seen.last_error)}" if seen.last_error else "."
    return failed.format(count=seen.failures) + why


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else f"{text}."


def _clock(at: datetime, zone: str) -> str:
    return f"{at.astimezone(ZoneInfo(zone)):%H:%M:%S %Z}"
