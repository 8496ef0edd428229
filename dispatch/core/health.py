"""/healthz, /readyz and /metrics, answered before anything that needs a host name, a session or a table.

/healthz: this process answers. /readyz: what it stands on is there too; 503 names what is not. Point a load
balancer at /healthz: submissions are accepted while Redis is away."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import psycopg
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST

from dispatch.core import gauges, problems  # noqa: F401  (gauges register themselves)
from dispatch.core.loops import all_loops
from dispatch.core.metrics import told
from dispatch.core.redis import REDIS_ERRORS, client

_migrated = False


class HealthMiddleware:
    """Answers the three addresses itself and passes everything else on."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        self.answers = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.answers.get(request.path_info)
        if answer is None:
            return self.get_response(request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
        return answer(request)


def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> HttpResponse:
    missing = missing_parts()
    if not missing:
        return JsonResponse({"status": "ready"})
    errors = [{"field": None, "code": part, "detail": why} for part, why in missing.items()]
    detail = "Missing: " + ", ".join(missing) + "."
    return JsonResponse(
        problems.body(503, "not_ready", detail=detail, errors=errors),
        status=503,
        content_type=problems.CONTENT_TYPE,
    )


def metrics(request: HttpRequest) -> HttpResponse:
    expected = f"Bearer {settings.METRICS_TOKEN}"
    if settings.METRICS_TOKEN and not hmac.compare_digest(
        request.headers.get("Authorization", "").encode(), expected.encode()
    ):
        return HttpResponse(status=401, headers={"WWW-Authenticate": "Bearer"})
    all_loops()  # their modules register readers and gauges
    return HttpResponse(told(), content_type=CONTENT_TYPE_LATEST)


def missing_parts() -> dict[str, str]:
    """What is not there, of database, migrations and redis, each with why; empty when all is."""
    missing: dict[str, str] = {}
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, psycopg.Error) as error:  # a pool that finds no connection raises psycopg's own
        missing["database"] = _first_line(error)
    else:
        if unapplied := _unapplied():
            missing["migrations"] = f"{unapplied} not applied: run `manage.py migrate`."
    try:
        client().ping()
    except REDIS_ERRORS as error:
        missing["redis"] = _first_line(error)
    return missing


def _unapplied() -> int:
    """How many migrations are not applied; asked until it is none, for code does not change under a process."""
    global _migrated
    if _migrated:
        return 0
    executor = MigrationExecutor(connection)
    count = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
    _migrated = count == 0
    return count


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
