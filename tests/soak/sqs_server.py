"""Run moto's SQS with queues whose requests cost the same however many messages they hold.

moto's queue is one list that each request reads several times, without a lock. With some thousand messages a
batch of ten takes seconds, longer than a received pointer stays hidden, and requests at the same time lose
messages. Here each group is a separate queue, behind one lock. As in SQS, a repeated deduplication id is dropped
for five minutes, even if the first message was deleted meanwhile.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from copy import copy
from itertools import count
from typing import Any

from moto.server import main
from moto.sqs import models
from moto.sqs.exceptions import ReceiptHandleIsInvalid

Message = models.Message


class GroupedQueue(models.Queue):
    """A FIFO queue: the first message of each group, unless it is hidden, is ready to be received."""

    __module__ = models.__name__  # moto reads the name of the service from it

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._changed = threading.Condition()
        self._groups: dict[str, deque[Message]] = {}
        self._ready: dict[str, None] = {}  # groups, in the order in which they became ready
        # A heap by when messages are shown (ms); an entry counts if the message still has its moment.
        self._hidden: list[tuple[float, int, Message]] = []
        self._numbers = count()
        self._received: dict[str, Message] = {}  # by receipt handle
        self._deleted: set[int] = set()  # hashes of receipt handles
        self._sent_at: dict[str, float] = {}  # by deduplication id, oldest first
        self._length = 0

    def add_message(self, message: Message) -> None:
        """Append a message to its group, unless its deduplication id was used within five minutes."""
        group, now = str(message.group_id), time.monotonic()
        with self._changed:
            while self._sent_at:
                oldest = next(iter(self._sent_at))
                if now - self._sent_at[oldest] < models.DEDUPLICATION_TIME_IN_SECONDS:
                    break
                del self._sent_at[oldest]
            if message.deduplication_id in self._sent_at:
                return
            self._sent_at[str(message.deduplication_id)] = now
            self._groups.setdefault(group, deque()).append(message)
            self._length += 1
            if len(self._groups[group]) == 1:
                self._ready[group] = None
                self._changed.notify()

    def receive(self, most: int, wait_s: float, visibility_s: int) -> list[Message]:
        """Return the first messages of up to `most` groups, and hide them; wait until there is one."""
        ends = time.monotonic() + wait_s
        found: list[Message] = []
        with self._changed:
            while True:
                self._show_lapsed()
                while self._ready and len(found) < most:
                    group = next(iter(self._ready))
                    del self._ready[group]
                    message = self._groups[group][0]
                    message.mark_received(visibility_timeout=visibility_s)
                    self._received[str(message.receipt_handle)] = message
                    self._hide(message)
                    found.append(copy(message))
                left_s = ends - time.monotonic()
                if found or left_s <= 0:
                    return found
                lapse_s = self._hidden[0][0] / 1000 - time.time() if self._hidden else left_s
                self._changed.wait(max(0.001, min(left_s, lapse_s)))

    def delete_message(self, receipt_handle: str) -> None:
        """Delete a message. Raises ReceiptHandleIsInvalid."""
        with self._changed:
            message = self._received.get(receipt_handle)
            if message is None:
                if hash(receipt_handle) in self._deleted:
                    return
                raise ReceiptHandleIsInvalid
            for handle in filter(None, message.all_receipt_handles):
                self._received.pop(handle, None)
                self._deleted.add(hash(handle))
            key = str(message.group_id)
            group = self._groups[key]
            was_first = group[0] is message
            group.remove(message)
            self._length -= 1
            if not group:
                del self._groups[key]
                self._ready.pop(key, None)
            elif was_first:
                self._ready[key] = None
                self._changed.notify()

    def change_visibility(self, receipt_handle: str, seconds: int) -> None:
        """Hide a message for this time from now. Raises ReceiptHandleIsInvalid."""
        with self._changed:
            message = self._received.get(receipt_handle)
            if message is None:
                raise ReceiptHandleIsInvalid
            message.change_visibility(seconds)
            self._hide(message)
            self._ready.pop(str(message.group_id), None)
            self._changed.notify()

    def _hide(self, message: Message) -> None:
        heapq.heappush(self._hidden, (message.visible_at, next(self._numbers), message))

    def _show_lapsed(self) -> None:
        now = time.time() * 1000
        while self._hidden and self._hidden[0][0] <= now:
            moment, _, message = heapq.heappop(self._hidden)
            group = self._groups.get(str(message.group_id))
            if message.visible_at == moment and group and group[0] is message:
                self._ready[str(message.group_id)] = None


def _receive(
    backend: Any, name: str, most: int, wait_s: int, visibility_s: int, attributes: object = None
) -> list[Message]:
    found: list[Message] = backend.get_queue(name).receive(most, wait_s, visibility_s)
    return found


def _change_visibility(backend: Any, queue_name: str, receipt_handle: str, visibility_timeout: int) -> None:
    backend.get_queue(queue_name).change_visibility(receipt_handle, visibility_timeout)


models.unix_time_millis = lambda: time.time() * 1000
for kind in ("", "_delayed", "_not_visible"):  # nobody asks for these counts here
    setattr(GroupedQueue, f"approximate_number_of_messages{kind}", property(lambda queue: queue._length))
models.Queue = GroupedQueue
models.SQSBackend.receive_message = _receive
models.SQSBackend.change_message_visibility = _change_visibility

if __name__ == "__main__":
    main()
