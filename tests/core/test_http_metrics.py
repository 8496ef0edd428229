"""Requests and sockets are counted at the edge, with labels that a client cannot multiply."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db import connection
from prometheus_client import REGISTRY

from dispatch.core.observability import gauges
from dispatch.core.web import http_metrics
from dispatch.core.web.http_metrics import HttpMetrics, SocketMetrics, area_of


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def receive() -> dict[str, Any]:
    return {"type": "http.request"}


async def send(message: dict[str, Any]) -> None:
    """Drop it."""


@pytest.mark.parametrize(
    ("path", "area"),
    [("/api/v1/jobs/", "api"), ("/telephony/1/voice/", "webhooks"), ("/readyz", "probes"), ("/", "pages"),
     ("/no/such/path", "pages")],
)  # fmt: skip
def test_paths_have_few_areas(path: str, area: str) -> None:
    assert area_of(path) == area


def test_a_request_is_counted_with_its_status_and_duration() -> None:
    seen: list[float] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        seen.append(value("dispatch_http_requests_in_progress"))
        await send({"type": "http.response.start", "status": 413})

    before = value("dispatch_http_requests_total", area="api", method="other", status="413")
    timed = value("dispatch_http_request_seconds_count", area="api")
    asyncio.run(HttpMetrics(answer)({"path": "/api/v1/x", "method": "BREW"}, receive, send))
    assert value("dispatch_http_requests_total", area="api", method="other", status="413") == before + 1
    assert value("dispatch_http_request_seconds_count", area="api") == timed + 1
    assert (seen, value("dispatch_http_requests_in_progress")) == ([1.0], 0.0)


def test_the_application_counts_its_requests() -> None:
    from dispatch import asgi

    before = value("dispatch_http_requests_total", area="probes", method="GET", status="200")
    scope = {"type": "http", "path": "/healthz", "method": "GET", "headers": [], "query_string": b""}
    asyncio.run(asgi.application(scope, receive, send))
    assert value("dispatch_http_requests_total", area="probes", method="GET", status="200") == before + 1


def test_a_request_without_a_response_is_counted_too() -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError

    before = value("dispatch_http_requests_total", area="pages", method="GET", status="0")
    with pytest.raises(RuntimeError):
        asyncio.run(HttpMetrics(fail)({"path": "/", "method": "GET"}, receive, send))
    assert value("dispatch_http_requests_total", area="pages", method="GET", status="0") == before + 1


@pytest.mark.parametrize(
    ("messages", "code", "opened"),
    [
        ([{"type": "websocket.accept"}, {"type": "websocket.close", "code": 1008}], "1008", 1.0),
        ([{"type": "websocket.close", "code": 4403}], "4403", 0.0),
        ([{"type": "websocket.accept"}, {"type": "websocket.close", "code": 3999}], "other", 1.0),
    ],
)
def test_sockets_are_counted_while_they_are_open(messages: Any, code: str, opened: float) -> None:
    seen: list[float] = []

    async def talk(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
            seen.append(value("dispatch_sockets_open"))

    before = value("dispatch_socket_ends_total", code=code)
    asyncio.run(SocketMetrics(talk)({}, receive, send))
    assert value("dispatch_socket_ends_total", code=code) == before + 1
    assert max(seen) == opened
    assert value("dispatch_sockets_open") == 0.0


@pytest.mark.django_db
def test_pool_and_redis_report_their_figures() -> None:
    connection.ensure_connection()
    pool = {labels[0]: figure for labels, figure in http_metrics.database_pool()}
    assert set(pool) == {"size", "available", "waiting"}
    assert pool["size"] >= 1
    memory = {labels[1]: figure for labels, figure in gauges.redis_memory()}
    assert memory["used"] > 0
    assert memory["max"] >= 0
