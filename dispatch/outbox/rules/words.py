"""Why a message waits, in words for whoever asks "why is this stuck?"."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo


@dataclass(frozen=True)
class Situation:
    """What is known about one message and what stands around it."""

    status: str
    mode: str
    due_at: datetime
    now: datetime
    waiting_for: str = ""
    last_error: str = ""
    attempts: int = 0
    resolution: str = ""
    is_in_flight: bool = False
    lease_until: datetime | None = None
    queued_at: datetime | None = None
    blocked_by: int | None = None
    flying: int | None = None
    ahead: int | None = None
    endpoint: str = ""
    is_endpoint_paused: bool = False
    disabled_reason: str = ""
    pool: str = ""
    is_pool_paused: bool = False
    is_pool_full: bool = False
    circuit_open_until: datetime | None = None
    is_outbox_enabled: bool = True
    zone: str = "UTC"


def why(it: Situation) -> str:
    """One or two sentences: what it waits for, and who can do something about it."""
    if it.status == "COMPLETED":
        return "Marked as resolved by a person." if it.resolution else "It was delivered."
    if it.status == "EXPIRED":
        return "It expired before it could be delivered."
    if it.status == "CANCELLED":
        if it.is_in_flight:
            return "It was cancelled during its call; its group goes on when the call ends."
        return "It was ignored by a person." if it.resolution else "It was cancelled."
    if it.status == "ERROR":
        stops = {
            "BLOCK_ON_ERROR": "Later messages of its group wait until somebody retries, ignores or resolves it.",
            "NEXT_ON_ERROR": "Later BLOCK_ON_ERROR messages of its group wait until it is resolved; others go on.",
        }.get(it.mode, "It holds nobody up.")
        return f"It failed after {_times(it.attempts)}: {it.last_error or 'no reason is known'} {stops}"
    if it.status == "PROCESSING":
        ends = _at(it, it.lease_until)
        return f"It is being called; if its process died, it comes back when its lease ends{ends}."
    if it.status == "QUEUED":
        return f"It is on the queue{_at(it, it.queued_at, 'since')} and waits for a router. Does one run?"
    return _pending(it)


def _pending(it: Situation) -> str:
    if not it.is_outbox_enabled:
        return "The outbox is switched off (OUTBOX_ENABLED)."
    if it.mode != "IMMEDIATE":
        if it.blocked_by is not None:
            return (
                f"Its group is stopped by the error of message {it.blocked_by}: retry, ignore or resolve that one."
            )
        if it.flying is not None:
            return f"Message {it.flying} of its group is on its way; this one follows in order."
        if it.ahead is not None:
            return f"Message {it.ahead} of its group comes first, and waits itself."
    if it.due_at > it.now:
        what = {
            "": "It is scheduled",
            "retry": f"It failed ({it.last_error.rstrip('.') or 'no answer'}) and is tried again",
            "too_many_requests": "The receiver asked for less (429); it is sent again",
            "not_acknowledged": "The receiver did not take it yet; it is sent again",
            "lease": "Its last call ended without a result; it is sent again",
        }.get(it.waiting_for, "It waits")
        return f"{what}{_at(it, it.due_at)}."
    if it.disabled_reason:
        return f"The endpoint {it.endpoint} is disabled: {it.disabled_reason} Nothing is lost; enable it."
    if it.is_endpoint_paused:
        return f"The endpoint {it.endpoint} is paused."
    if it.is_pool_paused:
        return f"The pool {it.pool} is paused."
    if it.circuit_open_until is not None:
        until = _at(it, it.circuit_open_until, "until")
        return f"Its target failed too often and is left alone{until}; then one message is tried."
    if it.waiting_for == "queue":
        return "The queue could not be reached; it is published as soon as it can be."
    if it.waiting_for == "rate":
        return f"The rate of the pool {it.pool} is used up; it goes as soon as it may."
    if it.is_pool_full:
        return f"All places of the pool {it.pool} are taken; it is in line."
    return "It is due and goes with the next poll. If it stays here, the poller does not run."


def _times(attempts: int) -> str:
    return "one attempt" if attempts == 1 else f"{attempts} attempts"


def _at(it: Situation, when: datetime | None, word: str = "at") -> str:
    return f" {word} {when.astimezone(ZoneInfo(it.zone)):%Y-%m-%d %H:%M:%S %Z}" if when else ""
