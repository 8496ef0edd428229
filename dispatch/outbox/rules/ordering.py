"""Decide which message of a group is next.

`sql.HEADS` makes the same decision in the database; a test keeps the two consistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

BLOCK, NEXT, IMMEDIATE = "BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"
PENDING, ERROR = "PENDING", "ERROR"


@dataclass(frozen=True)
class Waiting:
    """The fields of a message that determine its order."""

    id: int
    sequence: int
    mode: str
    status: str
    due_at: datetime
    expires_at: datetime | None = None
    in_flight: bool = False

    @property
    def order(self) -> tuple[int, int]:
        return self.sequence, self.id


@dataclass(frozen=True)
class NextInGroup:
    """The next step of a group.

    `message` is next, not before its `due_at`; or `blocked_by` is the ERROR that blocks the group; or
    `in_flight` must end first. If all are None, nothing waits.
    """

    message: Waiting | None = None
    blocked_by: Waiting | None = None
    in_flight: Waiting | None = None


def is_held(message: Waiting, errors: Iterable[Waiting]) -> Waiting | None:
    """Return the earliest ERROR that holds `message`, if any.

    Every earlier ordered ERROR holds a BLOCK message. Only the ERROR of an earlier BLOCK message holds a NEXT
    message.
    """
    earlier = (e for e in errors if e.mode != IMMEDIATE and e.order < message.order)
    holding = [e for e in earlier if message.mode == BLOCK or e.mode == BLOCK]
    return min(holding, key=lambda e: e.order, default=None)


def next_in_group(group: Iterable[Waiting], now: datetime) -> NextInGroup:
    """Decide what a group does next.

    A head that is not due yet holds the group. Messages that no error holds overtake those that an error holds.
    An expired message holds nothing.
    """
    ordered = [m for m in group if m.mode != IMMEDIATE]
    errors = [m for m in ordered if m.status == ERROR]
    flying = next((m for m in ordered if m.in_flight), None)
    if flying:
        return NextInGroup(in_flight=flying)
    pending = sorted(
        (m for m in ordered if m.status == PENDING and not (m.expires_at and m.expires_at <= now)),
        key=lambda m: m.order,
    )
    held_by = None
    for message in pending:
        by = is_held(message, errors)
        if by is None:
            return NextInGroup(message=message)
        held_by = held_by or by
    return NextInGroup(blocked_by=held_by)


# Events about failed deliveries, which endpoints other than the failing one may receive.
ABOUT_FAILURES = ("message.failed", "group.blocked", "group.unblocked")


def passes_filter(event_types: Iterable[str], kind: str) -> bool:
    """Return whether an endpoint's event types ("job.assigned", "job.*" or "*") include this kind of event.

    Of the events about messages, only failures are sent, and only if named: "*" does not include them. Each of the
    others would create another message, without end.
    """
    if kind.startswith("message."):
        return kind in ABOUT_FAILURES and kind in event_types
    return any(
        wanted in ("*", kind) or (wanted.endswith(".*") and kind.startswith(wanted[:-1])) for wanted in event_types
    )


def is_circular(kind: str, data: Mapping[str, Any], endpoint_id: int) -> bool:
    """Return whether sending this event to this endpoint could repeat without end.

    A failure is not sent to the endpoint that failed. The failure of a message that reports a failure is sent to
    nobody, or two failing endpoints would report each other's failures forever.
    """
    return kind in ABOUT_FAILURES and (
        data.get("endpoint_id") == endpoint_id or data.get("type") in ABOUT_FAILURES
    )
