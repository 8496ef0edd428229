"""A TCP proxy between this process and its Redis that hangs, answers late or cuts connections on demand.

    def test_a_hang_costs_one_timeout(redis_proxy):
        redis_proxy.hang()
        ...
        assert redis_proxy.unanswered == 1

Import the fixture by name: `from tests.harness.redis_proxy import redis_proxy`. `client()` then connects through
the proxy, with a short REDIS_TIMEOUT_S. Call `redis_proxy.hold_circuit_open()` to count time-outs on a slow
machine.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from redis.connection import parse_url

from dispatch.core.redis import client as core_redis
from tests.support.waiting import PATIENCE

TIMEOUT_S = 0.3
_POLL_S = 0.02
_CHUNK = 65536


class RedisProxy:
    """Forwards bytes to `upstream_url` until told to misbehave; a mode applies to open connections as well.

    `unanswered`: connections on which a command was received and never forwarded: each is one time-out of a
    client. `connections`: how many were accepted. `answered`: how many replies of the server were passed on.
    """

    def __init__(self, upstream_url: str) -> None:
        self.upstream_url = upstream_url
        self._upstream = parse_url(upstream_url)
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        database = self._upstream.get("db") or 0
        password = urlsplit(upstream_url).password
        login = f":{password}@" if password else ""
        self.url = f"redis://{login}127.0.0.1:{self.port}/{database}"
        self.connections = self.cuts = 0
        self.unanswered_at: list[float] = []  # in monotonic seconds
        self._mode, self._delay_s, self._marker, self._cuts_left = "pass", 0.0, b"", 0
        self._hung_until = self.answered = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._start()

    # --- modes ----------------------------------------------------------------------------------------------
    def hang(self) -> None:
        """Accepts connections and commands, forwards nothing, never answers."""
        self._mode = "hang"

    def hang_open_connections(self) -> None:
        """Forward nothing more on the connections that are open now. New ones pass everything on."""
        self._hung_until = self.connections

    def answer_late(self, delay_s: float) -> None:
        """Forwards each command at once and holds its answer back for `delay_s`."""
        self._mode, self._delay_s = "late", delay_s

    def cut_after(self, marker: bytes, times: int = 1) -> None:
        """Reset the connection instead of passing on the reply to a request that contains `marker`.

        The command ran, and its reply is lost. After `times` such requests, all replies pass again.
        """
        self._mode, self._marker, self._cuts_left = "cut", marker, times

    def pass_on(self) -> None:
        """Forwards everything."""
        self._mode = "pass"

    def refuse(self) -> None:
        """Closes the port and every connection."""
        self.close()

    def accept_again(self) -> None:
        """Opens the port again after `refuse`."""
        self._listener = self._listen(self.port)
        self._closed.clear()
        self._mode = "pass"
        self._start()

    def hold_circuit_open(self) -> None:
        """Keeps the breaker of this server open once it opens, so that time-outs can be counted."""
        core_redis.breaker().pause_s = 3600.0

    @contextmanager
    def direct(self) -> Iterator[None]:
        """While the block runs, `client()` goes to the server itself; `url` still leads through the proxy."""
        settings.REDIS_URL = self.upstream_url
        core_redis.client.cache_clear()
        try:
            yield
        finally:
            settings.REDIS_URL = self.url
            core_redis.client.cache_clear()

    def close(self) -> None:
        """Closes the port and every connection."""
        self._closed.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._threads.clear()
        self._listener.close()

    # --- connections ----------------------------------------------------------------------------------------
    @staticmethod
    def _listen(port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        listener.settimeout(_POLL_S)
        return listener

    def _start(self) -> None:
        thread = threading.Thread(target=self._accept, args=(self._listener,), name="redis-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                downstream, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with self._lock:
                self.connections += 1
                number = self.connections
            thread = threading.Thread(
                target=self._serve, args=(downstream, number), name="redis-proxy", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _connect(self) -> socket.socket:
        if path := self._upstream.get("path"):
            upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            upstream.connect(path)
            return upstream
        return socket.create_connection(
            (self._upstream.get("host", "localhost"), self._upstream.get("port", 6379))
        )

    def _serve(self, downstream: socket.socket, number: int) -> None:
        with downstream, suppress(OSError), self._connect() as upstream:
            _Connection(self, downstream, upstream, number).run()

    def _counts_cut(self, request: bytes) -> bool:
        with self._lock:
            if self._mode != "cut" or self._cuts_left <= 0 or self._marker not in request:
                return False
            self._cuts_left -= 1
            self.cuts += 1
            return True

    @property
    def unanswered(self) -> int:
        return len(self.unanswered_at)


class _Connection:
    """One client's connection and its counterpart to the server."""

    def __init__(self, proxy: RedisProxy, downstream: socket.socket, upstream: socket.socket, number: int) -> None:
        self.proxy, self.downstream, self.upstream, self.number = proxy, downstream, upstream, number
        self.held: list[tuple[float, bytes]] = []  # answers and the moments at which they may pass
        self.is_unanswered = self.is_cut = False

    def run(self) -> None:
        while not self.proxy._closed.is_set():
            readable, _, _ = select.select([self.downstream, self.upstream], [], [], _POLL_S)
            if self.downstream in readable and not self._request():
                return
            if self.upstream in readable and not self._answer():
                return
            while self.held and time.monotonic() >= self.held[0][0]:
                self.downstream.sendall(self.held.pop(0)[1])

    def _request(self) -> bool:
        request = self.downstream.recv(_CHUNK)
        if not request:
            return False
        if self.proxy._mode == "hang" or self.number <= self.proxy._hung_until:
            if not self.is_unanswered:
                self.is_unanswered = True
                self.proxy.unanswered_at.append(time.monotonic())
            return True
        self.is_cut = self.is_cut or self.proxy._counts_cut(request)
        self.upstream.sendall(request)
        return True

    def _answer(self) -> bool:
        answer = self.upstream.recv(_CHUNK)
        if not answer:
            return False
        if self.number <= self.proxy._hung_until:
            return True
        self.proxy.answered += 1
        if self.is_cut:  # a reset, not an orderly end
            self.downstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        if self.proxy._mode == "late":
            self.held.append((time.monotonic() + self.proxy._delay_s, answer))
        else:
            self.downstream.sendall(answer)
        return True


@pytest.fixture
def redis_proxy(settings: Any) -> Iterator[RedisProxy]:
    """The shared client connects through a proxy that passes everything on, with a short time-out."""
    url, timeout_s = settings.REDIS_URL, settings.REDIS_TIMEOUT_S
    proxy = RedisProxy(url)
    settings.REDIS_URL = proxy.url
    settings.REDIS_TIMEOUT_S = TIMEOUT_S
    core_redis.client.cache_clear()
    yield proxy
    # First the address: a request that is still under way may ask for a client at any moment.
    settings.REDIS_URL, settings.REDIS_TIMEOUT_S = url, timeout_s
    core_redis.client.cache_clear()
    proxy.close()
