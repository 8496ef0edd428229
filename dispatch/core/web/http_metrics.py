"""Count requests and web sockets at the edge of the ASGI application, refused ones included."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from django.db import connections
from prometheus_client import Counter, Gauge, Histogram

from dispatch.core.observability.metrics import gauge

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

requests = Counter(
    "dispatch_http_requests_total",
    "HTTP requests by area and status; 0: no response.",
    ["area", "method", "status"],
)
request_seconds = Histogram(
    "dispatch_http_request_seconds",
    "Duration of an HTTP request, from its headers to the end of its response.",
    ["area"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
in_progress = Gauge(
    "dispatch_http_requests_in_progress", "HTTP requests in progress.", multiprocess_mode="livesum"
)
sockets = Gauge("dispatch_sockets_open", "Open web sockets.", multiprocess_mode="livesum")
socket_ends = Counter("dispatch_socket_ends_total", "Ended or refused web sockets, by close code.", ["code"])

# By the beginning of the path; anything else is a page. Few names, so that nobody can create series at will.
AREAS = (
    ("/api/", "api"),
    ("/telephony/", "webhooks"),
    ("/admin/", "admin"),
    ("/static/", "static"),
    ("/metrics", "metrics"),
    ("/healthz", "probes"),
    ("/servez", "probes"),
    ("/readyz", "probes"),
)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Codes of the protocol and of Dispatch; a client may send any other.
CODES = frozenset({1000, 1001, 1005, 1006, 1008, 1009, 1011, 1012, 4401, 4403})


def area_of(path: str) -> str:
    """Return the area of the site that a path belongs to."""
    return next((area for beginning, area in AREAS if path.startswith(beginning)), "pages")


class HttpMetrics:
    """Measure each request of the wrapped application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        area, status = area_of(scope["path"]), 0
        method = scope["method"] if scope["method"] in METHODS else "other"

        async def note_status(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.perf_counter()
        in_progress.inc()
        try:
            await self._application(scope, receive, note_status)
        finally:
            in_progress.dec()
            requests.labels(area, method, str(status)).inc()
            request_seconds.labels(area).observe(time.perf_counter() - began)


class SocketMetrics:
    """Count the open web sockets of the wrapped application, and how they end."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open, code = False, 1006  # ended without a close frame

        async def note_disconnect() -> dict[str, Any]:
            nonlocal code
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or 1005
            return message

        async def note_state(message: dict[str, Any]) -> None:
            nonlocal is_open, code
            if message["type"] == "websocket.accept" and not is_open:
                is_open = True
                sockets.inc()
            elif message["type"] == "websocket.close":
                code = message.get("code") or 1000
            await send(message)

        try:
            await self._application(scope, note_disconnect, note_state)
        finally:
            if is_open:
                sockets.dec()
            socket_ends.labels(str(code) if code in CODES else "other").inc()


_POOL = {"size": "pool_size", "available": "pool_available", "waiting": "requests_waiting"}


@gauge(
    "dispatch_db_pool",
    "Connections of this web process's pool, free ones, and requests waiting for one.",
    ("what",),
)
def database_pool() -> Iterator[tuple[tuple[str, ...], float]]:
    """Read the statistics of the pool; nothing if this process has none."""
    pool = getattr(connections["default"], "pool", None)
    if pool is not None:
        stats = pool.get_stats()
        for what, name in _POOL.items():
            yield (what,), float(stats.get(name, 0))
