"""Explain in plain text why a message is in its state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark


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
        return _("Marked as resolved manually.") if it.resolution else _("Delivered.")
    if it.status == "EXPIRED":
        return _("It expired before it could be delivered.")
    if it.status == "CANCELLED":
        if it.is_in_flight:
            return _("Canceled during an attempt; its group continues when the attempt ends.")
        return _("Ignored manually.") if it.resolution else _("Canceled.")
    if it.status == "ERROR":
        stops = {
            "BLOCK_ON_ERROR": mark("Later messages of its group wait until you retry, ignore or resolve it."),
            "NEXT_ON_ERROR": mark(
                "Later BLOCK_ON_ERROR messages of its group wait until it is resolved; others continue."
            ),
        }.get(it.mode, mark("It doesn't block other messages."))
        one, many = _("Failed after one attempt: {error}"), _("Failed after {count} attempts: {error}")
        failed = one if it.attempts == 1 else many
        error = it.last_error or _("reason unknown")
        sentence = failed.format(count=it.attempts, error=error).rstrip(".")
        return f"{sentence}. {_(stops)}"
    if it.status == "PROCESSING":
        text = _(
            "An attempt is in progress. If its process died, the message is sent again when its lease ends{at}."
        )
        return text.format(at=_format_at(it, it.lease_until))
    if it.status == "QUEUED":
        text = _("On the queue{since}, waiting for a router. If it stays here, check that a router is running.")
        return text.format(since=_format_at(it, it.queued_at, mark(" since {time}")))
    return _pending(it)


def _pending(it: Situation) -> str:
    if not it.is_outbox_enabled:
        return _("The outbox is disabled (OUTBOX_ENABLED).")
    if it.mode != "IMMEDIATE":
        if it.blocked_by is not None:
            text = _("Its group is blocked by the error of message {message}: retry, ignore or resolve that one.")
            return text.format(message=it.blocked_by)
        if it.flying is not None:
            text = _("Message {message} of its group is in flight; this one follows in order.")
            return text.format(message=it.flying)
        if it.ahead is not None:
            text = _("Message {message} of its group comes first and is waiting too.")
            return text.format(message=it.ahead)
    if held := _held(it):
        if it.due_at > it.now:
            text = _("{reason} It is not due before {time}.")
            return text.format(reason=held, time=_format_time(it, it.due_at))
        return held
    if it.due_at > it.now:
        reason = {
            "": mark("Scheduled{at}."),
            "retry": mark("Failed ({error}); next retry{at}."),
            "too_many_requests": mark("The receiver asked for fewer requests (429); next try{at}."),
            "not_acknowledged": mark("The receiver deferred it; next try{at}."),
            "lookup": mark("Too many other names of your receivers are being looked up; next try{at}."),
            "lease": mark("The last attempt ended without a result; next try{at}."),
        }.get(it.waiting_for, mark("Waiting{at}."))
        error = it.last_error.rstrip(".") or _("no response")
        return _(reason).format(error=error, at=_format_at(it, it.due_at))
    if it.circuit_open_until is not None:
        until = _format_at(it, it.circuit_open_until, mark(" until {time}"))
        text = _("The target failed repeatedly, so its circuit is open{until}. After that, one message is tried.")
        return text.format(until=until)
    if it.waiting_for == "queue":
        return _("The queue was unreachable; the message is published as soon as it is available.")
    if it.waiting_for == "rate":
        text = _("The pool {pool} has reached its rate limit; the message is sent as soon as the limit allows.")
        return text.format(pool=it.pool)
    if it.is_pool_full:
        return _("All slots of the pool {pool} are in use; the message waits for one.").format(pool=it.pool)
    return _("Due, and sent with the next poll. If it stays here, check that the poller is running.")


def _held(it: Situation) -> str:
    """Describe what holds the message on purpose, whenever it is due; "" if nothing does."""
    if it.disabled_reason:
        text = _("The endpoint {endpoint} is disabled: {reason} Messages are kept; enable it to send them.")
        return text.format(endpoint=it.endpoint, reason=_(it.disabled_reason))
    if it.is_endpoint_paused:
        return _("The endpoint {endpoint} is paused.").format(endpoint=it.endpoint)
    if it.is_pool_paused:
        return _("The pool {pool} is paused.").format(pool=it.pool)
    return ""


def _format_at(it: Situation, when: datetime | None, words: str = mark(" at {time}")) -> str:
    return _(words).format(time=_format_time(it, when)) if when else ""


def _format_time(it: Situation, when: datetime) -> str:
    return f"{when.astimezone(ZoneInfo(it.zone)):%Y-%m-%d %H:%M:%S %Z}"
