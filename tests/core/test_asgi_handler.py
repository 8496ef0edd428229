"""Requests run in persistent threads: each has a separate context, none is lost, and a disconnect is harmless."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from dispatch.core.web.asgi_handler import ThreadedASGIHandler
from tests.support.waiting import PATIENCE

THREADS = 3


def name_of_thread(request: HttpRequest) -> HttpResponse:
    return HttpResponse(threading.current_thread().name)


async def on_the_loop(request: HttpRequest) -> HttpResponse:
    asyncio.get_running_loop()
    return HttpResponse(threading.current_thread().name)


def in_pieces(request: HttpRequest) -> StreamingHttpResponse:
    async def pieces() -> Any:
        for piece in ("one ", "two ", "three"):
            yield piece

    return StreamingHttpResponse(pieces())


urlpatterns = [path("thread/", name_of_thread), path("loop/", on_the_loop), path("pieces/", in_pieces)]


@pytest.fixture
def ask(settings: Any) -> Any:
    """Request a path from the application as an ASGI server does; return status and body."""
    settings.ROOT_URLCONF = __name__
    application = ThreadedASGIHandler(THREADS)

    async def one(path: str) -> tuple[int, str]:
        said: list[dict[str, Any]] = []
        asked = iter([{"type": "http.request", "body": b""}])

        async def receive() -> dict[str, Any]:
            for message in asked:
                return message
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        scope = {"type": "http", "path": path, "method": "GET", "headers": [(b"host", b"testserver")]}
        await application(scope, receive, send)
        return said[0]["status"], b"".join(message.get("body", b"") for message in said[1:]).decode()

    async def many(paths: list[str]) -> list[tuple[int, str]]:
        return await asyncio.gather(*map(one, paths))

    return lambda *paths: asyncio.run(many(list(paths)))


def test_many_requests_at_once_are_all_answered_by_few_threads(ask: Any) -> None:
    answers = ask(*["/thread/"] * 40)
    assert [status for status, _ in answers] == [200] * 40
    assert len({thread for _, thread in answers}) <= THREADS


def test_an_asynchronous_view_runs_on_the_loop(ask: Any) -> None:
    assert ask("/loop/") == [(200, threading.current_thread().name)]


def test_streamed_responses_and_unknown_paths_work(ask: Any) -> None:
    assert ask("/pieces/") == [(200, "one two three")]
    assert ask("/nowhere/")[0][0] == 404


def test_clients_that_leave_before_they_are_answered_harm_nobody(app_url: str) -> None:
    at = urlsplit(app_url)
    for sent in (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /api/v1/submissions/ HTTP/1.1\r\n"):
        for _ in range(20):
            with socket.create_connection((at.hostname, at.port)) as client:
                client.sendall(sent)
    with ThreadPoolExecutor(30) as clients:
        answers = list(
            clients.map(lambda _: requests.get(f"{app_url}/healthz", timeout=PATIENCE).status_code, range(60))
        )
    assert answers == [200] * 60
