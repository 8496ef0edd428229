"""Carry pointers on an ActiveMQ queue over STOMP.

JMSXGroupID is the pointer's messageGroupId, so that one consumer gets all pointers of a group, one after
another. When a connection ends (heartbeats detect dead ones), ActiveMQ redelivers the unacknowledged pointers of
its consumer; there is no visibility timeout. ActiveMQ does not drop duplicates. The epoch in the token makes both
harmless. A release sends the pointer again, and then acknowledges the old one. A broker with `schedulerSupport`
holds a delayed one until it is due; otherwise the consumer does.

Acknowledgments are not part of a transaction. ActiveMQ 5 keeps those of transactions until the connection ends,
and compares all of them with what is held at each commit: a router would get slower and slower.
"""

from __future__ import annotations

import heapq
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import unquote, urlsplit

import stomp
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dispatch.core import clock
from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable

# How many more deliveries than attempts a consumer may hold: those that wait for their organization's share.
WAITING = 100
NOT_BEFORE = "dispatch-not-before"  # Unix milliseconds


def publisher(url: str) -> Publisher:
    """Return a publisher to the queue that `url` names."""
    return ActiveMqPublisher(Place.parse(url))


def consumer(url: str, name: str) -> Consumer:
    """Return a consumer of the queue that `url` names."""
    return ActiveMqConsumer(Place.parse(url), name)


class ActiveMqPublisher(Publisher):
    """Publish each batch in one transaction of the broker."""

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
                    headers={**_pointer_headers(pointer.messageGroupId), "correlation-id": dedup_id},
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
    """Receive pointers in the connection's thread and hold them until `receive` takes them."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__(name)
        self._place = place
        # The broker sends no more than the router can work on; the rest goes to other routers.
        self._prefetch = settings.OUTBOX_ROUTER_CALLS + WAITING
        self.max_held = self._prefetch
        self._link: Link | None = None
        # Received frames: (not before, order of arrival, frame). A new link starts empty, because the broker
        # redelivers what the old one held.
        self._arrived: list[tuple[int, int, Any]] = []
        self._order = count()
        self._changed = threading.Condition()

    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        link = self._connected()
        with self._changed:
            while True:
                if deliveries := self._due(link, max_n):
                    return deliveries
                left = deadline - time.monotonic()
                if not link.is_up:
                    raise QueueUnavailable("activemq_connection_lost")
                if left <= 0:
                    return []
                self._changed.wait(min(left, self._next_due_s(), 1.0))

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        with self._changed:
            self._arrived.clear()

    def _connected(self) -> Link:
        if self._link is not None and not self._link.is_up:
            self.close()
        if self._link is None:
            self._link = Link(self._place, self._on_message)
            self._link.subscribe(self._prefetch)
        return self._link

    def _on_message(self, link: Link, frame: Any) -> None:
        held = frame.headers.get(NOT_BEFORE, "")
        with self._changed:
            if link is not self._link:  # a late frame of an abandoned link
                return
            heapq.heappush(self._arrived, (int(held) if held.isdecimal() else 0, next(self._order), frame))
            self._changed.notify()

    def _due(self, link: Link, max_n: int) -> list[Delivery]:
        deliveries: list[Delivery] = []
        now = clock.now_ms()
        while self._arrived and len(deliveries) < max_n and self._arrived[0][0] <= now:
            _, _, frame = heapq.heappop(self._arrived)
            group = frame.headers.get("JMSXGroupID", "")
            deliveries.append(
                Delivery(
                    frame.body.decode("utf-8", "replace"),
                    frame.headers["ack"],
                    partial(self._ack, link),
                    partial(self._release, link, group),
                )
            )
        return deliveries

    def _next_due_s(self) -> float:
        if not self._arrived:
            return float("inf")
        return max(0.001, (self._arrived[0][0] - clock.now_ms()) / 1000)

    def _ack(self, link: Link, deliveries: Sequence[Delivery]) -> None:
        *others, last = [delivery.receipt for delivery in deliveries]

        def acknowledge(connection: stomp.Connection12, receipt: str) -> None:
            for ack_id in others:
                connection.ack(ack_id)
            connection.ack(last, receipt=receipt)  # the broker processes frames in order

        link.confirm(acknowledge)

    def _release(self, link: Link, group: str, delivery: Delivery, delay_s: float) -> None:
        delay_ms = int(delay_s * 1000)
        headers = _pointer_headers(group)
        if delay_ms:
            headers |= {"AMQ_SCHEDULED_DELAY": str(delay_ms), NOT_BEFORE: str(clock.now_ms() + delay_ms)}

        def resend(connection: stomp.Connection12, receipt: str) -> None:
            connection.send(
                self._place.destination,
                delivery.pointer_json,
                content_type="application/json",
                headers={**headers, "receipt": receipt},
            )

        link.confirm(resend)
        self._ack(link, [delivery])


def _pointer_headers(group: str) -> dict[str, str]:
    """Return the headers of a persistent pointer in its group."""
    return {"persistent": "true", **({"JMSXGroupID": group} if group else {})}


CONNECT_TIMEOUT_S = 5.0
RECEIPT_TIMEOUT_S = 10.0
HEARTBEAT_MS = 10_000
DEFAULT_PORTS = {"stomp": 61613, "stomp+ssl": 61614}


@dataclass(frozen=True)
class Place:
    """The address of a queue: `stomp://user:password@host:61613/queue-name`, or `stomp+ssl://…` for TLS."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    destination: str

    @classmethod
    def parse(cls, url: str) -> Place:
        """Parse the URL. Raises ImproperlyConfigured, without repeating the password."""
        parts = urlsplit(url)
        name = unquote(parts.path.strip("/"))
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or not name:
            raise ImproperlyConfigured(
                "OUTBOX_QUEUE_URL must be stomp[+ssl]://user:password@host:port/queue-name."
            )
        return cls(
            parts.hostname,
            parts.port or DEFAULT_PORTS[parts.scheme],
            parts.scheme == "stomp+ssl",
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
            f"/queue/{name}",
        )


class Link(stomp.ConnectionListener):
    """A connection to the broker, opened by the constructor. Raises QueueUnavailable.

    `arrived(link, frame)` is called in the link's own thread for each message and must not block.
    """

    def __init__(self, place: Place, arrived: Callable[[Link, Any], None] | None = None) -> None:
        self._place, self._arrived = place, arrived
        self._lost = ""
        self._up = threading.Event()
        self._receipts: dict[str, threading.Event] = {}
        where = [(place.host, place.port)]
        self._connection = stomp.Connection12(
            where,
            heartbeats=(HEARTBEAT_MS, HEARTBEAT_MS),
            timeout=CONNECT_TIMEOUT_S,
            reconnect_attempts_max=1,
            prefer_localhost=False,
            try_loopback_connect=False,
            auto_decode=False,  # bodies stay bytes: a malformed body must not end the connection
            auto_content_length=False,  # with a length, the broker would treat text as bytes
        )
        if place.tls:
            self._connection.set_ssl(where)
        self._connection.set_listener("link", self)
        try:
            self._connection.connect(place.user, place.password)
        except (stomp.exception.StompException, OSError, ssl.SSLError) as error:
            raise QueueUnavailable(f"{place.host}:{place.port}: {_describe_error(error)}") from error
        if not self._up.wait(CONNECT_TIMEOUT_S) or self._lost:
            self.close()
            raise QueueUnavailable(f"{place.host}:{place.port}: {self._lost or 'the broker does not answer'}")

    @property
    def is_up(self) -> bool:
        return not self._lost

    def subscribe(self, prefetch: int) -> None:
        """Start receiving messages; the broker pauses while `prefetch` are unacknowledged."""
        self.confirm(
            lambda connection, receipt: connection.subscribe(
                self._place.destination,
                id="1",
                ack="client-individual",
                headers={"activemq.prefetchSize": str(prefetch), "receipt": receipt},
            )
        )

    def transact(self, work: Callable[[stomp.Connection12, str], None]) -> None:
        """Run `work(connection, transaction)` in one transaction of the broker and wait for the confirmed commit.

        Raises QueueUnavailable; the transaction may or may not have been committed then.
        """

        def whole(connection: stomp.Connection12, receipt: str) -> None:
            transaction = connection.begin()
            work(connection, transaction)
            connection.commit(transaction, headers={"receipt": receipt})

        self.confirm(whole)

    def confirm(self, work: Callable[[stomp.Connection12, str], None]) -> None:
        """Run `work(connection, receipt)`, whose last frame asks for this receipt, and wait for it.

        Raises QueueUnavailable; what was sent may or may not have arrived then.
        """
        receipt, done = uuid.uuid4().hex, threading.Event()
        self._receipts[receipt] = done
        try:
            if not self._lost:
                work(self._connection, receipt)
                if not done.wait(RECEIPT_TIMEOUT_S):
                    self._lose(f"not confirmed within {RECEIPT_TIMEOUT_S:g} s")
        except (stomp.exception.StompException, OSError) as error:
            self._lose(_describe_error(error))
        finally:
            self._receipts.pop(receipt, None)
        if self._lost:
            raise QueueUnavailable(f"{self._place.host}:{self._place.port}: {self._lost}")

    def close(self) -> None:
        """End the connection; the broker redelivers unacknowledged messages to other consumers."""
        self._lose("closed")
        self._connection.remove_listener("link")
        try:
            self._connection.disconnect()
        except (stomp.exception.StompException, OSError):
            pass
        finally:
            self._connection.transport.disconnect_socket()

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._up.set()
        for waiting in list(self._receipts.values()):
            waiting.set()

    # --- Called by stomp.py, in its thread ---
    def on_connected(self, frame: Any) -> None:
        self._up.set()

    def on_message(self, frame: Any) -> None:
        if self._arrived is not None:
            self._arrived(self, frame)

    def on_receipt(self, frame: Any) -> None:
        if waiting := self._receipts.get(frame.headers.get("receipt-id", "")):
            waiting.set()

    def on_error(self, frame: Any) -> None:
        self._lose(frame.headers.get("message") or "the broker reported an error")

    def on_disconnected(self) -> None:
        self._lose("the connection was lost")

    def on_heartbeat_timeout(self) -> None:
        self._lose("the broker's heartbeat stopped")


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
