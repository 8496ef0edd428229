"""Which message of a group goes next. `sql.HEADS` decides the same in the database; a test holds the two
together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

BLOCK, NEXT, IMMEDIATE = "BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"
PENDING, ERROR = "PENDING", "ERROR"


@dataclass(frozen=True)
class Waiting:
    """A message as its order sees it."""

    id: int
    sequence: int
    created_at: datetime
    mode: str
    status: str
    due_at: datetime
    expires_at: datetime | None = None
    in_flight: bool = False

    @property
    def order(self) -> tuple[int, datetime, int]:
        return self.sequence, self.created_at, self.id


@dataclass(frozen=True)
class Head:
    """`message` goes next, not before its `due_at`; or `blocked_by` is the ERROR that stops the group; or neither:
    nothing waits, or one is in flight."""

    message: Waiting | None = None
    blocked_by: Waiting | None = None
    in_flight: Waiting | None = None


def is_held(message: Waiting, errors: Iterable[Waiting]) -> Waiting | None:
    """The earliest ERROR that holds `message`: a BLOCK message is held by any earlier ordered one, a NEXT message
    only by an earlier BLOCK message's."""
    earlier = (e for e in errors if e.mode != IMMEDIATE and e.order < message.order)
    holding = [e for e in earlier if message.mode == BLOCK or e.mode == BLOCK]
    return min(holding, key=lambda e: e.order, default=None)


def head(group: Iterable[Waiting], now: datetime) -> Head:
    """What a group does next. A head that waits for its time holds the group; one that is held by an error is
    passed by those that are not; one that has expired holds nobody."""
    ordered = [m for m in group if m.mode != IMMEDIATE]
    errors = [m for m in ordered if m.status == ERROR]
    flying = next((m for m in ordered if m.in_flight), None)
    if flying:
        return Head(in_flight=flying)
    pending = sorted(
        (m for m in ordered if m.status == PENDING and not (m.expires_at and m.expires_at <= now)),
        key=lambda m: m.order,
    )
    held_by = None
    for message in pending:
        by = is_held(message, errors)
        if by is None:
            return Head(message=message)
        held_by = held_by or by
    return Head(blocked_by=held_by)


def passes_filter(event_types: Iterable[str], kind: str) -> bool:
    """Whether an endpoint with these event types wants events of this kind: "job.assigned", "job.*" or "*".

    Nobody is told of messages themselves: delivering that would make another message, without end."""
    if kind.startswith("message."):
        return False
    return any(
        wanted in ("*", kind) or (wanted.endswith(".*") and kind.startswith(wanted[:-1])) for wanted in event_types
    )
