"""One STOMP 1.2 connection: frames whose arrival the broker confirms, and the messages it sends. Knows nothing of
pointers. A link that broke stays broken; make another."""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import stomp
from django.core.exceptions import ImproperlyConfigured

from dispatch.outbox.queues.base import QueueUnavailable

CONNECT_TIMEOUT_S = 5.0
RECEIPT_TIMEOUT_S = 10.0
HEARTBEAT_MS = 10_000
DEFAULT_PORTS = {"stomp": 61613, "stomp+ssl": 61614}


@dataclass(frozen=True)
class Place:
    """Where a queue is: `stomp://user:password@host:61613/queue-name`, or `stomp+ssl://…` for TLS."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    destination: str

    @classmethod
    def parse(cls, url: str) -> Place:
        """Raises ImproperlyConfigured, without repeating the password."""
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
    """Connects at once. Raises QueueUnavailable.

    `arrived(link, frame)` is called in the link's own thread for each message and must not block."""

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
            auto_decode=False,  # bodies stay bytes: one that is no text must not end the connection
            auto_content_length=False,  # with a length the broker would take text for bytes
        )
        if place.tls:
            self._connection.set_ssl(where)
        self._connection.set_listener("link", self)
        try:
            self._connection.connect(place.user, place.password)
        except (stomp.exception.StompException, OSError, ssl.SSLError) as error:
            raise QueueUnavailable(f"{place.host}:{place.port}: {_words(error)}") from error
        if not self._up.wait(CONNECT_TIMEOUT_S) or self._lost:
            self.close()
            raise QueueUnavailable(f"{place.host}:{place.port}: {self._lost or 'the broker does not answer'}")

    @property
    def is_up(self) -> bool:
        return not self._lost

    def subscribe(self, prefetch: int) -> None:
        """Messages begin to arrive; the broker holds back when `prefetch` are not acknowledged."""
        self._confirmed(
            lambda receipt: self._connection.subscribe(
                self._place.destination,
                id="1",
                ack="client-individual",
                headers={"activemq.prefetchSize": str(prefetch), "receipt": receipt},
            )
        )

    def transact(self, work: Callable[[stomp.Connection12, str], None]) -> None:
        """Runs `work(connection, transaction)` in one transaction of the broker, all or nothing, and waits until
        the commit is confirmed. Raises QueueUnavailable; then it may or may not have happened."""

        def whole(receipt: str) -> None:
            transaction = self._connection.begin()
            work(self._connection, transaction)
            self._connection.commit(transaction, headers={"receipt": receipt})

        self._confirmed(whole)

    def close(self) -> None:
        """Ends the connection; the broker gives to others what was not acknowledged."""
        self._lose("closed")
        self._connection.remove_listener("link")
        try:
            self._connection.disconnect()
        except (stomp.exception.StompException, OSError):
            pass
        finally:
            self._connection.transport.disconnect_socket()

    def _confirmed(self, send: Callable[[str], None]) -> None:
        receipt, done = uuid.uuid4().hex, threading.Event()
        self._receipts[receipt] = done
        try:
            if not self._lost:
                send(receipt)
                if not done.wait(RECEIPT_TIMEOUT_S):
                    self._lose(f"not confirmed within {RECEIPT_TIMEOUT_S:g} s")
        except (stomp.exception.StompException, OSError) as error:
            self._lose(_words(error))
        finally:
            self._receipts.pop(receipt, None)
        if self._lost:
            raise QueueUnavailable(f"{self._place.host}:{self._place.port}: {self._lost}")

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


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
