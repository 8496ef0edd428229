"""Limit request bodies before any of a body is stored.

Django reads the whole body of a request, to disk if it is long, before any middleware or view runs. This ASGI
middleware rejects a body that exceeds its route's limit: immediately by its Content-Length, or by counting bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dispatch.core.api import problems

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class BodyTooLarge(Exception):
    """The body exceeds its route's limit."""


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limit = self.limit_of(scope)
        if _declared_length(scope) > limit:
            await self._refuse(scope, send, limit)
            return
        has_started = False
        received = 0

        async def count_body() -> dict[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise BodyTooLarge
            return message

        async def note_start(message: dict[str, Any]) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._application(scope, count_body, note_start)
        except BodyTooLarge:
            if not has_started:
                await self._refuse(scope, send, limit)

    def limit_of(self, scope: Scope) -> int:
        """Return the maximum number of bytes of a body for this path."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return next((size for route, size in self._routes if route.fullmatch(path)), self._default)

    async def _refuse(self, scope: Scope, send: Send, limit: int) -> None:
        """Return a 413 and close the connection, so that the rest of the body is not read."""
        detail = f"The body is too large. The maximum here is {_in_mebibytes(limit)}."
        content = json.dumps(problems.problem_body(413, "too_large", detail=detail)).encode()
        headers = [
            (b"content-type", problems.CONTENT_TYPE.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def _in_mebibytes(size: int) -> str:
    return f"{size / 2**20:g} MiB"
