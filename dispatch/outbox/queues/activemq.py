"""An ActiveMQ queue over STOMP: JMSXGroupID is the pointer's messageGroupId, so that one consumer gets all of a
group, one after another.

ActiveMQ hands out again what a consumer held when its connection ends (heartbeats find dead ones), not after a
time, and does not swallow repetitions; the epoch in the token makes both harmless. A release with a delay sends
the pointer anew and acknowledges the old one, in one transaction: a broker with `schedulerSupport` keeps it until
it is due, and for any other broker the consumer does."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import stomp

from dispatch.core import clock
from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable
from dispatch.outbox.queues.stomp_link import Link, Place

PREFETCH = 1000
NOT_BEFORE = "dispatch-not-before"  # Unix milliseconds


def publisher(url: str) -> Publisher:
    return ActiveMqPublisher(Place.parse(url))


def consumer(url: str, name: str) -> Consumer:
    return ActiveMqConsumer(Place.parse(url), name)


class ActiveMqPublisher(Publisher):
    deduplicates = False

    def __init__(self, place: Place) -> None:
        self._place = place
        self._link: Link | None = None
        self._lock = threading.Lock()

    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        def send(connection: stomp.Connection12, transaction: str) -> None:
            for pointer, dedup_id in publications:
                connection.send(
                    self._place.destination,
                    pointer.to_json(),
                    content_type="application/json",
                    transaction=transaction,
                    headers={**_kept(pointer.messageGroupId), "correlation-id": dedup_id},
                )

        if not publications:
            return []
        try:
            with self._lock:
                self._connected().transact(send)
        except QueueUnavailable as error:
            return [error] * len(publications)
        return [None] * len(publications)

    def ping(self) -> None:
        with self._lock:
            self._connected().transact(lambda connection, transaction: None)

    def close(self) -> None:
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    def _connected(self) -> Link:
        if self._link is not None and not self._link.is_up:
            self._link.close()
            self._link = None
        if self._link is None:
            self._link = Link(self._place)
        return self._link


class ActiveMqConsumer(Consumer):
    def __init__(self, place: Place, name: str) -> None:
        super().__init__(name)
        self._place = place
        self._link: Link | None = None
        # What has arrived: (not before, order of arrival, frame). A new link starts with nothing, for the broker
        # sends again what the old one held.
        self._arrived: list[tuple[int, int, Any]] = []
        self._order = count()
        self._news = threading.Condition()

    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        link = self._connected()
        with self._news:
            while True:
                if found := self._due(link, max_n):
                    return found
                left = deadline - time.monotonic()
                if not link.is_up:
                    raise QueueUnavailable("the connection to ActiveMQ was lost")
                if left <= 0:
                    return []
                self._news.wait(min(left, self._next_due_s(), 1.0))

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        with self._news:
            self._arrived.clear()

    def _connected(self) -> Link:
        if self._link is not None and not self._link.is_up:
            self.close()
        if self._link is None:
            self._link = Link(self._place, self._on_message)
            self._link.subscribe(PREFETCH)
        return self._link

    def _on_message(self, link: Link, frame: Any) -> None:
        held = frame.headers.get(NOT_BEFORE, "")
        with self._news:
            if link is not self._link:  # a late word of a link that was given up
                return
            heapq.heappush(self._arrived, (int(held) if held.isdecimal() else 0, next(self._order), frame))
            self._news.notify()

    def _due(self, link: Link, max_n: int) -> list[Delivery]:
        found: list[Delivery] = []
        now = clock.now_ms()
        while self._arrived and len(found) < max_n and self._arrived[0][0] <= now:
            _, _, frame = heapq.heappop(self._arrived)
            group = frame.headers.get("JMSXGroupID", "")
            found.append(
                Delivery(
                    frame.body.decode("utf-8", "replace"),
                    frame.headers["ack"],
                    partial(self._ack, link),
                    partial(self._release, link, group),
                )
            )
        return found

    def _next_due_s(self) -> float:
        if not self._arrived:
            return float("inf")
        return max(0.001, (self._arrived[0][0] - clock.now_ms()) / 1000)

    def _ack(self, link: Link, deliveries: Sequence[Delivery]) -> None:
        def acknowledge(connection: stomp.Connection12, transaction: str) -> None:
            for delivery in deliveries:
                connection.ack(delivery.receipt, transaction=transaction)

        link.transact(acknowledge)

    def _release(self, link: Link, group: str, delivery: Delivery, delay_s: float) -> None:
        delay_ms = int(delay_s * 1000)
        headers = _kept(group)
        if delay_ms:
            headers |= {"AMQ_SCHEDULED_DELAY": str(delay_ms), NOT_BEFORE: str(clock.now_ms() + delay_ms)}

        def again(connection: stomp.Connection12, transaction: str) -> None:
            connection.send(
                self._place.destination,
                delivery.pointer_json,
                content_type="application/json",
                transaction=transaction,
                headers=headers,
            )
            connection.ack(delivery.receipt, transaction=transaction)

        link.transact(again)


def _kept(group: str) -> dict[str, str]:
    """The headers of a pointer that survives a restart of the broker, in its group."""
    return {"persistent": "true", **({"JMSXGroupID": group} if group else {})}
