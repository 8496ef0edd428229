"""Check what the event log says about messages: legal transitions, epochs, and the order within each group."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from dispatch.core.events import history
from dispatch.core.events.history import Entry, IllegalStep, Machine, Scope, stream
from dispatch.outbox.models import Message, Status
from dispatch.outbox.rules.ordering import Waiting, next_in_group
from dispatch.outbox.rules.states import FLIGHT_ENDS, STEPS
from dispatch.outbox.services.actions import Action

_ACTIONS = {action.event_kind.partition(".")[2]: action for action in Action}
_IN_FLIGHT = (Status.QUEUED, Status.PROCESSING)
_WHENEVER = datetime.min.replace(tzinfo=UTC)


class MessageHistory(Machine):
    """Follow one message by `rules.states` and the actions of users. Its token is the epoch."""

    type: ClassVar[str] = "message"
    table: ClassVar[str] = Message._meta.db_table
    steps_are_pruned: ClassVar[bool] = True

    def follow(self, entry: Entry) -> None:
        if entry.verb == "created":
            self.move((), Status.PENDING)
        elif entry.verb in _ACTIONS:
            action = _ACTIONS[entry.verb]
            self.move(action.before, action.after)
        elif entry.verb in FLIGHT_ENDS and "epoch" in entry.data:
            before, after = FLIGHT_ENDS[entry.verb]
            status = entry.data.get("status", "")
            self.move(before, status)
            if status not in after:
                raise IllegalStep(f"must not lead to {status}")
            self.match_token(entry.data["epoch"])
        elif entry.verb in STEPS:
            is_claimed = entry.verb == "queued" or self.status == Status.PENDING
            self.move(*STEPS[entry.verb])
            (self.raise_token if is_claimed else self.match_token)(entry.data.get("epoch"))


_ORDERED = """
SELECT m.group_id, m.id, m.sequence, m.mode, m.expires_at IS NOT NULL, e.id, e.kind, e.data->>'status'
FROM core_event e JOIN outbox_message m ON m.id = e.subject_id
WHERE e.subject_type = 'message' AND m.mode <> 'IMMEDIATE' AND e.id >= %(first)s
ORDER BY m.group_id, e.id
"""


@dataclass
class _Group:
    """The open messages of one group, as its events say.

    The heaps hold (sequence, id) by status and mode; entries that no longer have that status are dropped when they
    reach the top. A message that may expire is in no heap: whether it has, only the clock at that time knew.
    """

    messages: dict[int, Waiting] = field(default_factory=dict)
    heaps: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    in_flight: int | None = None

    def update(self, message: Waiting, can_expire: bool) -> None:
        """Apply the new status of a message."""
        if message.status in _IN_FLIGHT:
            self.in_flight = message.id
        elif self.in_flight == message.id:
            self.in_flight = None
        if message.status not in (Status.PENDING, Status.ERROR):
            self.messages.pop(message.id, None)
            return
        self.messages[message.id] = message
        if not can_expire or message.status == Status.ERROR:
            heapq.heappush(self.heaps.setdefault((message.status, message.mode), []), message.order)

    def is_claimed_by(self, message: Waiting) -> bool:
        """Return whether the message was PENDING until this status.

        A message that is started when another one ends is never QUEUED. If its earlier events are not known, it
        may have been QUEUED before them.
        """
        return message.status == Status.QUEUED or self._status(message.order) == Status.PENDING

    def firsts(self) -> list[Waiting]:
        """Return the first message of each status and mode: no other can be next, or hold the next one."""
        found = []
        for (status, _), heap in self.heaps.items():
            while heap and self._status(heap[0]) != status:
                heapq.heappop(heap)
            if heap:
                found.append(self.messages[heap[0][1]])
        return found

    def _status(self, order: tuple[int, int]) -> str:
        message = self.messages.get(order[1])
        return message.status if message else ""


def check_order(scope: Scope) -> Iterator[str]:
    """Yield a line for each message that was sent out of the order of its group, or beside another one."""
    for group_id, rows in groupby(stream(_ORDERED, {"first": scope.first}), itemgetter(0)):
        group = _Group()
        for _, message_id, sequence, mode, can_expire, event_id, kind, said in rows:
            status = _status_after(kind.partition(".")[2], said)
            if status is None:
                continue
            message = Waiting(message_id, sequence, mode, status, _WHENEVER)
            if status in _IN_FLIGHT and group.in_flight != message_id:
                line = f"group {group_id}: message {message_id} was claimed in event {event_id}"
                if group.in_flight is not None:
                    yield f"{line}, while message {group.in_flight} was in flight"
                elif group.is_claimed_by(message) and (why := _why_not_next(group, message)):
                    yield f"{line}, {why}"
            group.update(message, can_expire)


def _status_after(verb: str, said: str | None) -> str | None:
    """Return the status after an event; None if the event does not change it."""
    if verb in _ACTIONS:
        return _ACTIONS[verb].after
    if verb in FLIGHT_ENDS and said:
        return said
    if verb in STEPS:
        return STEPS[verb][1]
    return Status.PENDING if verb == "created" else None


def _why_not_next(group: _Group, queued: Waiting) -> str:
    """Return why the message was not the next one of its group ("" if it was), by `rules.next_in_group`."""
    waiting = Waiting(queued.id, queued.sequence, queued.mode, Status.PENDING, _WHENEVER)
    others = [message for message in group.firsts() if message.id != queued.id]
    found = next_in_group([waiting, *others], _WHENEVER)
    if found.message is not None and found.message.id != queued.id:
        return f"before message {found.message.id}"
    return f"although message {found.blocked_by.id} blocks it" if found.blocked_by else ""


def register() -> None:
    """Register the checks. Called when the applications are ready."""
    history.register(MessageHistory)
    history.register_check("order within groups", check_order)
