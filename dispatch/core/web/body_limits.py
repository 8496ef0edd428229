"""Limit request bodies before any of a body is stored.

Django reads the whole body of a request, to disk if it is long, before any middleware or view runs. This ASGI
middleware rejects a body that exceeds its route's limit: immediately by its Content-Length, or by counting bytes.
It also limits what the bodies of all open requests take together, and rejects a body that arrives too slowly:
otherwise a few hundred stalled uploads, which need no sign-in, would take all memory.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dispatch.core.api import problems

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# The first bytes of a body that do not count toward MAX_HELD_BYTES: webhooks and forms are always read.
FREE_BYTES = 64 * 1024
# Bytes of all bodies that a process holds at once: in memory, and on disk beyond the default limit of a body.
MAX_HELD_BYTES = 256 * 2**20
MAX_HELD_DISK_BYTES = 2**30
# A body must arrive within this time plus the time that its bytes take at this rate.
FIRST_BYTES_S = 30.0
MIN_BYTES_PER_S = 32 * 1024


class Refused(Exception):
    """The body is not read further. `status` is that of the response."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Body:
    """Count the bytes of one body. `memory` and `disk` are those that count toward the limits of all bodies."""

    def __init__(self, limit: int, in_memory: int) -> None:
        self.limit, self._in_memory = limit, in_memory
        self.began, self.received, self.is_complete = time.monotonic(), 0, False

    @property
    def memory(self) -> int:
        return max(0, min(self.received, self._in_memory) - FREE_BYTES)

    @property
    def disk(self) -> int:
        return max(0, self.received - self._in_memory)

    def seconds_left(self) -> float:
        """Return how long the next bytes may take."""
        return self.began + FIRST_BYTES_S + self.received / MIN_BYTES_PER_S - time.monotonic()


class BodyLimitMiddleware:
    """Reject bodies longer than `default_bytes`, or than the limit of the first matching route.

    `routes` are pairs of a regular expression for the whole path and a number of bytes.
    """

    def __init__(
        self, application: Application, *, default_bytes: int, routes: Iterable[tuple[str, int]] = ()
    ) -> None:
        self._application = application
        self._default = default_bytes
        self._routes = [(re.compile(path), size) for path, size in routes]
        self._memory = self._disk = 0  # bytes that the open requests hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (declared := _declared_length(scope)) == 0:
            await self._application(scope, receive, send)
            return
        body = _Body(self.limit_of(scope), self._default)
        if declared is not None and declared > body.limit:
            await self._refuse(scope, send, 413, body)
            return
        has_started = False

        async def count_body() -> dict[str, Any]:
            if body.is_complete:
                return await receive()
            try:
                async with asyncio.timeout(body.seconds_left()):
                    message = await receive()
            except TimeoutError:
                raise Refused(408) from None
            self._count(body, len(message.get("body", b"")))
            body.is_complete = not message.get("more_body", False)
            return message

        async def note_start(message: dict[str, Any]) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._application(scope, count_body, note_start)
        except Refused as refused:
            if not has_started:
                await self._refuse(scope, send, refused.status, body)
        finally:
            self._memory -= body.memory
            self._disk -= body.disk

    def _count(self, body: _Body, added: int) -> None:
        """Count bytes that have arrived. Raises Refused beyond the limit of this body or of all bodies."""
        memory, disk = body.memory, body.disk
        body.received += added
        self._memory += body.memory - memory
        self._disk += body.disk - disk
        if body.received > body.limit:
            raise Refused(413)
        takes_more = body.memory > memory or body.disk > disk
        if takes_more and (self._memory > MAX_HELD_BYTES or self._disk > MAX_HELD_DISK_BYTES):
            raise Refused(503)

    def limit_of(self, scope: Scope) -> int:
        """Return the maximum number of bytes of a body for this path."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return next((size for route, size in self._routes if route.fullmatch(path)), self._default)

    async def _refuse(self, scope: Scope, send: Send, status: int, body: _Body) -> None:
        """Return the problem and close the connection, so that the rest of the body is not read."""
        code, detail = {
            408: ("request_timeout", "The body arrived too slowly. Send the request again."),
            413: ("too_large", f"The body is too large. The maximum here is {_in_mebibytes(body.limit)}."),
            503: (
                problems.Unavailable.default_code,
                "There are too many large requests at once. Send this one again later.",
            ),
        }[status]
        content = json.dumps(problems.problem_body(status, code, detail=detail)).encode()
        headers = [
            (b"content-type", problems.CONTENT_TYPE.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        if status == 503:
            headers.append((b"retry-after", str(problems.RETRY_AFTER_S).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


def _declared_length(scope: Scope) -> int | None:
    """Return the length of the body in bytes: 0 if there is none, None if it is not known yet."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            length = int(value) if value.isdigit() else None
    return length


def _in_mebibytes(size: int) -> str:
    return f"{size / 2**20:g} MiB"
