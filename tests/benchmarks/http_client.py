"""Post forms over kept connections for little CPU time: the benchmarks' provider shares the cores it measures."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools


class HttpClient:
    """Posts forms over at most `most` connections to one server; further requests wait for a free one."""

    def __init__(self, most: int) -> None:
        self._idle: deque[_Connection] = deque()
        self._free = asyncio.Semaphore(most)

    async def post(self, url: str, form: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Post an encoded form, and return the response's status and body. Raises ConnectionError."""
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", *(f"{k}: {v}" for k, v in headers.items())]
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(form)}", "", ""]
        async with self._free:
            connection = await self._connected(parts.hostname or "", parts.port or 80)
            response = await connection.ask("\r\n".join(lines).encode() + form)
            if connection.is_open:
                self._idle.append(connection)
            return response

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    async def _connected(self, host: str, port: int) -> _Connection:
        while self._idle:  # the server closes what it keeps for too long
            if (connection := self._idle.pop()).is_open:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, host, port)
        return connection


class _Connection(asyncio.Protocol):
    """One connection; answers one request after another. The parser calls the `on_…` methods."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._waiting: asyncio.Future[tuple[int, str]] | None = None
        self.is_open = False

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, str]]:
        self._body.clear()
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("The server closed the connection."))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._waiting and not self._waiting.done():
            self._waiting.set_result((self._parser.get_status_code(), b"".join(self._body).decode()))
