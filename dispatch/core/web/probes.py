"""Serve /healthz, /servez and /readyz in the event loop.

They need no request thread, pooled connection or host name.

- /healthz (liveness): this process responds.
- /servez (readiness, proxies): PostgreSQL responds and all migrations are applied, so requests can be served even
  without Redis. Pages can be read while PostgreSQL rejects writes.
- /readyz: PostgreSQL accepts writes, and Redis responds too.

A server that does not respond within LIMIT_S counts as unavailable. Reasons are logged; responses name only the
missing parts.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import structlog

from dispatch.core.api import problems
from dispatch.core.db import write_probe
from dispatch.core.web import health

log = structlog.get_logger(__name__)

LIMIT_S = 2.0
READY = {"status": "ready"}

# Status, content type, body and further headers of a response.
_Answer = tuple[int, str, bytes, dict[str, str]]


class Check:
    """Check one server in a dedicated thread, one check at a time. Concurrent callers share the result."""

    def __init__(self, part: str, ask: Callable[[], Any]) -> None:
        self.part = part
        self._ask = ask
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self._last_reason = ""

    async def missing(self) -> health.Missing | None:
        """Return the part if it is missing, else None. No result within LIMIT_S means that it is missing."""
        answer = asyncio.shield(asyncio.wrap_future(self.start()))
        try:
            missing = await asyncio.wait_for(answer, LIMIT_S)
        except TimeoutError:
            missing = health.Missing(self.part, "does not respond", f"no response within {LIMIT_S:g} s")
        self._log_change("" if missing is None else missing.reason)
        return missing

    def start(self) -> Future[Any]:
        """Start a check, unless one is running; return its future."""
        with self._lock:
            if self._running is None or self._running.done():
                self._running = Future()
                name = f"probe-{self.part}"
                threading.Thread(target=self._run, args=(self._running,), name=name, daemon=True).start()
            return self._running

    def _run(self, answer: Future[Any]) -> None:
        try:
            answer.set_result(self._ask())
        except Exception as error:
            answer.set_result(health.Missing(self.part, "does not respond", repr(error)))

    def _log_change(self, reason: str) -> None:
        if reason != self._last_reason:
            self._last_reason = reason
            if reason:
                log.warning("probe_failed", part=self.part, reason=reason)
            else:
                log.info("probe_succeeded", part=self.part)


_database = Check("database", health.missing_database)
_writes = Check("database writes", health.missing_writes)
_redis = Check("redis", health.missing_redis)
_readers = Check("event readers", health.lagging_readers)
_redis_warnings = Check("redis warnings", health.redis_warnings)


def reset() -> None:
    """Close the probes' connection; the next probe connects with the current settings (tests)."""
    health.database_link.close()
    write_probe.reset()
    for check in (_database, _writes, _redis, _readers, _redis_warnings):
        check._running = None


class Probes:
    """Serve the probes and pass all other requests on to `application`."""

    def __init__(self, application: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Handle one ASGI connection."""
        probe = _PROBES.get(scope["path"]) if scope["type"] == "http" else None
        if probe is None:
            await self._application(scope, receive, send)
            return
        if scope["method"] in ("GET", "HEAD"):
            status, content_type, body, headers = await probe()
        else:
            status, content_type, body, headers = 405, "text/plain", b"", {"Allow": "GET, HEAD"}
        headers = {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})


async def _healthz() -> _Answer:
    return 200, "text/plain", b"ok\n", {}


async def _servez() -> _Answer:
    return await _all_of(_database)


async def _readyz() -> _Answer:
    status, content_type, body, headers = await _all_of(_database, _writes, _redis)
    if status == 200:
        lags, warnings = await asyncio.gather(_result_of(_readers), _result_of(_redis_warnings))
        more = {
            **({"lagging_readers": lags} if lags and isinstance(lags, dict) else {}),
            **({"warnings": warnings} if warnings and isinstance(warnings, list) else {}),
        }
        body = json.dumps({**READY, **more}).encode()
    return status, content_type, body, headers


async def _result_of(check: Check) -> Any:
    """Return the check's result, or None if there is none in time."""
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(check.start())), LIMIT_S)
    except TimeoutError:
        return None


async def _all_of(*checks: Check) -> _Answer:
    by_part: dict[str, health.Missing] = {}
    for found in await asyncio.gather(*(check.missing() for check in checks)):
        if found:
            by_part.setdefault(found.part, found)
    missing = list(by_part.values())
    if not missing:
        return 200, "application/json", json.dumps(READY).encode(), {}
    errors = [{"field": None, "code": found.part, "detail": found.detail} for found in missing]
    detail = f"Missing: {', '.join(found.part for found in missing)}."
    body = problems.problem_body(503, "not_ready", detail=detail, errors=errors)
    headers = {"Retry-After": str(problems.RETRY_AFTER_S)}
    return 503, problems.CONTENT_TYPE, json.dumps(body).encode(), headers


_PROBES: dict[str, Callable[[], Awaitable[_Answer]]] = {
    "/healthz": _healthz,
    "/servez": _servez,
    "/readyz": _readyz,
}
