"""A TCP proxy in front of Redis that loses replies: the command runs, and its reply never arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from redis.connection import parse_url

from dispatch.core.redis.client import Script, client


class ReplyLoss:
    """The proxy. `lose` says which reply is lost next, and how."""

    def __init__(self, upstream_url: str) -> None:
        self._upstream_url = upstream_url
        self._lock = threading.Lock()
        self._marker: bytes | None = None
        self._left, self._how = 0, "cut"
        self.lost = 0
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="reply-loss", daemon=True).start()

    @property
    def url(self) -> str:
        database = parse_url(self._upstream_url).get("db", 0)
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/{database}"

    def lose(self, script: Script, how: str, times: int = 1) -> None:
        """Lose the next `times` replies to `script`.

        `how`: "cut" closes the connection after the command ran; "hold" keeps the connection open and never sends
        the reply.
        """
        client().script_load(script.source)
        with self._lock:
            self._marker, self._left, self._how, self.lost = script.sha.encode(), times, how, 0

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._connect_upstream()
            self._sockets += [near, far]
            link = _Link(self, near, far)
            threading.Thread(target=link.send_commands, daemon=True).start()
            threading.Thread(target=link.return_replies, daemon=True).start()

    def _connect_upstream(self) -> socket.socket:
        given: dict[str, Any] = dict(parse_url(self._upstream_url))
        if "path" in given:
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            far.connect(given["path"])
            return far  # the servers of tests have no password
        return socket.create_connection((given.get("host", "127.0.0.1"), given.get("port", 6379)))

    def matches(self, command: bytes) -> str | None:
        """How the reply to this command is lost, or None."""
        with self._lock:
            if self._left <= 0 or self._marker is None or self._marker not in command:
                return None
            self._left -= 1
            return self._how

    def count_loss(self) -> None:
        with self._lock:
            self.lost += 1


class _Link:
    def __init__(self, proxy: ReplyLoss, near: socket.socket, far: socket.socket) -> None:
        self._proxy, self._near, self._far = proxy, near, far
        self._how: str | None = None

    def send_commands(self) -> None:
        with suppress(OSError):
            while data := self._near.recv(1 << 20):
                self._how = self._how or self._proxy.matches(data)
                self._far.sendall(data)
        self._close()

    def return_replies(self) -> None:
        with suppress(OSError):
            while data := self._far.recv(1 << 20):
                if self._how is None:
                    self._near.sendall(data)
                else:
                    self._proxy.count_loss()
                    if self._how == "cut":
                        break
        self._close()

    def _close(self) -> None:
        for one in (self._near, self._far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def losing_replies(*, timeout_s: float = 0.3) -> Iterator[ReplyLoss]:
    """While the block runs, the shared client of this process reaches Redis through the proxy."""
    before = settings.REDIS_URL, settings.REDIS_TIMEOUT_S
    proxy = ReplyLoss(settings.REDIS_URL)
    settings.REDIS_URL, settings.REDIS_TIMEOUT_S = proxy.url, timeout_s
    client.cache_clear()
    try:
        yield proxy
    finally:
        settings.REDIS_URL, settings.REDIS_TIMEOUT_S = before
        client().connection_pool.disconnect()
        client.cache_clear()
        proxy.close()
