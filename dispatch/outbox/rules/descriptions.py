"""Explain in plain text why a message is in its state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo


@dataclass(frozen=True)
class Situation:
    """The state of one message, its group, target and pool."""

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


def explain_status(it: Situation) -> str:
    """Explain in one or two sentences what the message waits for and who can change that."""
    if it.status == "COMPLETED":
        return "Marked as resolved manually." if it.resolution else "Delivered."
    if it.status == "EXPIRED":
        return "It expired before it could be delivered."
    if it.status == "CANCELLED":
        if it.is_in_flight:
            return "Canceled during an attempt; its group continues when the attempt ends."
        return "Ignored manually." if it.resolution else "Canceled."
    if it.status == "ERROR":
        stops = {
            "BLOCK_ON_ERROR": "Later messages of its group wait until you retry, ignore or resolve it.",
            "NEXT_ON_ERROR": (
                "Later BLOCK_ON_ERROR messages of its group wait until it is resolved; others continue."
            ),
        }.get(it.mode, "It doesn't block other messages.")
        return f"Failed after {_times(it.attempts)}: {it.last_error or 'reason unknown'} {stops}"
    if it.status == "PROCESSING":
        ends = _format_at(it, it.lease_until)
        return (
            f"An attempt is in progress. If its process died, the message is sent again when its lease ends{ends}."
        )
    if it.status == "QUEUED":
        return (
            f"On the queue{_format_at(it, it.queued_at, 'since')}, waiting for a router. If it stays "
            "here, check that a router is running."
        )
    return _pending(it)


def _pending(it: Situation) -> str:
    if not it.is_outbox_enabled:
        return "The outbox is disabled (OUTBOX_ENABLED)."
    if it.mode != "IMMEDIATE":
        if it.blocked_by is not None:
            return (
                f"Its group is blocked by the error of message {it.blocked_by}: retry, ignore or resolve that one."
            )
        if it.flying is not None:
            return f"Message {it.flying} of its group is in flight; this one follows in order."
        if it.ahead is not None:
            return f"Message {it.ahead} of its group comes first and is waiting too."
    if it.due_at > it.now:
        reason = {
            "": "Scheduled",
            "retry": f"Failed ({it.last_error.rstrip('.') or 'no response'}); next retry",
            "too_many_requests": "The receiver asked for fewer requests (429); next try",
            "not_acknowledged": "The receiver deferred it; next try",
            "lookup": "Too many other names of your receivers are being looked up; next try",
            "lease": "The last attempt ended without a result; next try",
        }.get(it.waiting_for, "Waiting")
        return f"{reason}{_format_at(it, it.due_at)}."
    if it.disabled_reason:
        return (
            f"The endpoint {it.endpoint} is disabled: {it.disabled_reason} Messages are kept; "
            "enable it to send them."
        )
    if it.is_endpoint_paused:
        return f"The endpoint {it.endpoint} is paused."
    if it.is_pool_paused:
        return f"The pool {it.pool} is paused."
    if it.circuit_open_until is not None:
        until = _format_at(it, it.circuit_open_until, "until")
        return f"The target failed repeatedly, so its circuit is open{until}. After that, one message is tried."
    if it.waiting_for == "queue":
        return "The queue was unreachable; the message is published as soon as it is available."
    if it.waiting_for == "rate":
        return f"The pool {it.pool} has reached its rate limit; the message is sent as soon as the limit allows."
    if it.is_pool_full:
        return f"All slots of the pool {it.pool} are in use; the message waits for one."
    return "Due, and sent with the next poll. If it stays here, check that the poller is running."


def _times(attempts: int) -> str:
    return "one attempt" if attempts == 1 else f"{attempts} attempts"


def _format_at(it: Situation, when: datetime | None, word: str = "at") -> str:
    return f" {word} {when.astimezone(ZoneInfo(it.zone)):%Y-%m-%d %H:%M:%S %Z}" if when else ""
