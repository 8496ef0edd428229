"""Check the servers that this process needs, for the probes, and serve /metrics.

/metrics is served before any middleware that needs a host name, a session or a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import psycopg
from django.core.exceptions import BadRequest
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import Http404, HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from dispatch.core.db import write_probe
from dispatch.core.db.probe_link import DatabaseLink
from dispatch.core.events import readers
from dispatch.core.observability import gauges  # noqa: F401  (gauges register themselves)
from dispatch.core.observability.metrics import may_read, render_metrics
from dispatch.core.redis import state
from dispatch.core.runtime.loops import all_loops

_migrated = False


class Missing(NamedTuple):
    """A part that a probe found missing: its public name, a public detail, and the reason for the log."""

    part: str
    detail: str
    reason: str


database_link = DatabaseLink()


class HealthMiddleware:
    """Serve /metrics and pass all other requests on."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info != "/metrics":
            return self.get_response(request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
        return metrics(request)


def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics; 401 without the bearer token METRICS_TOKEN."""
    if not may_read(request.headers.get("Authorization", "")):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    all_loops()  # their modules register readers and gauges
    return HttpResponse(render_metrics(), content_type=CONTENT_TYPE_LATEST)


def missing_database() -> Missing | None:
    """Return what prevents this process from serving requests: PostgreSQL or a migration."""
    try:
        database_link.ask()
    except psycopg.Error as error:
        return Missing("database", "PostgreSQL does not respond.", _first_line(error))
    if unapplied := _unapplied():
        detail = f"{unapplied} not applied. Run `manage.py migrate`."
        return Missing("migrations", detail, detail)
    return None


def missing_writes() -> Missing | None:
    """Return PostgreSQL as missing if it answers and rejects writes."""
    fault = write_probe.find_fault()
    return Missing("database", fault.words, fault.reason) if fault else None


def missing_redis() -> Missing | None:
    """Return Redis as missing if one of its servers does not respond or rejects writes."""
    fault = next(iter(state.find_faults()), None)
    if fault is None or not fault.is_unusable:
        return None
    return Missing("redis", fault.words, f"{fault.server}: {fault.reason}")


def redis_warnings() -> list[str]:
    """Return what should be corrected in Redis although it can be used."""
    return [fault.words for fault in state.find_faults() if not fault.is_unusable]


def lagging_readers() -> dict[str, float]:
    """Return the readers of the event log that are behind, with seconds; empty if none is.

    A lagging reader is no reason to take a process out of rotation. Call this in a dedicated thread, because it
    closes the thread's connection.
    """
    all_loops()  # their modules register readers
    try:
        return {name: round(lag_s, 1) for name, lag_s in readers.lagging().items()}
    except DatabaseError:
        return {}  # the database responded a moment ago; the next probe reports what is missing
    finally:
        connection.close()


def _unapplied() -> int:
    """Return how many migrations are not applied. 0 is cached: a running process gets no new migrations."""
    global _migrated
    if _migrated:
        return 0
    try:
        executor = MigrationExecutor(connection)
        count = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    finally:
        connection.close()
    _migrated = count == 0
    return count


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class RejectNulBytesMiddleware:
    """Reject a page request with a NUL character: 404 if it is in the path, 400 if it is in the query.

    PostgreSQL can neither store nor compare it, so a search or filter would fail. The API reports the field
    itself.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        is_page = not request.path_info.startswith("/api/")
        if is_page and "\x00" in request.path_info:
            raise Http404
        if is_page and "%00" in request.META["QUERY_STRING"]:
            raise BadRequest("NUL characters can't be stored or searched for.")
        return self.get_response(request)
