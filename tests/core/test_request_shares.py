"""Callers share the request threads: slow requests of one, or hundreds at once, delay no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path

from dispatch.core.web import request_shares
from dispatch.core.web.asgi_handler import ThreadedASGIHandler
from tests.core.test_probes import Asked
from tests.support import factories
from tests.support.waiting import PATIENCE

GREEDY, SMALL = "Bearer greedy", "Bearer small"
_release = threading.Event()


def slow(request: HttpRequest) -> HttpResponse:
    _release.wait(PATIENCE)
    return HttpResponse("done")


def quick(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def owned(request: HttpRequest, organization_id: int) -> HttpResponse:
    request.organization = SimpleNamespace(pk=organization_id)  # as authentication does
    return HttpResponse("done")


urlpatterns = [path("slow/", slow), path("quick/", quick), path("owned/<int:organization_id>/", owned)]


@pytest.fixture
def handler(settings: Any) -> Callable[..., ThreadedASGIHandler]:
    settings.ROOT_URLCONF = __name__
    _release.clear()
    return ThreadedASGIHandler


def run(test: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(asyncio.wait_for(test, PATIENCE))
    finally:
        _release.set()


async def begin(application: ThreadedASGIHandler, *callers: str) -> list[asyncio.Task[Asked]]:
    """Begin a slow request of each caller; return when all are in a thread or wait for one."""
    before = application.unanswered
    tasks = [asyncio.create_task(Asked(application, "/slow/", caller).run()) for caller in callers]
    while application.unanswered < before + len(callers):
        await asyncio.sleep(0)
    return tasks


async def ends(tasks: list[asyncio.Task[Asked]]) -> list[int | None]:
    _release.set()
    return [asked.status for asked in await asyncio.gather(*tasks)]


def test_slow_requests_of_one_caller_delay_no_other(handler: Callable[..., ThreadedASGIHandler]) -> None:
    application = handler(4)

    async def test() -> None:
        waiting = await begin(application, *[GREEDY] * 50)
        for _ in range(3):
            assert (await Asked(application, "/quick/", SMALL).run()).status == 200
            assert (await Asked(application, "/quick/").run()).status == 200
        assert await ends(waiting) == [200] * 50
        assert application.unanswered == 0

    run(test())


def test_many_callers_without_a_credential_are_told_apart_by_path(
    handler: Callable[..., ThreadedASGIHandler],
) -> None:
    application = handler(4)

    async def test() -> None:
        waiting = await begin(application, *[""] * 20)
        assert (await Asked(application, "/quick/").run()).status == 200
        assert await ends(waiting) == [200] * 20

    run(test())


def test_one_caller_leaves_places_for_others_to_wait(handler: Callable[..., ThreadedASGIHandler]) -> None:
    application = handler(2, most_waiting=10)

    async def test() -> None:
        waiting = await begin(application, *[GREEDY] * 6)
        refused = await Asked(application, "/quick/", GREEDY).run()
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert b"Nothing was saved" in refused.body
        waiting += await begin(application, SMALL, SMALL, "")
        assert await ends(waiting) == [200] * 9

    run(test())


def test_keys_and_people_of_an_organization_are_one_caller(handler: Callable[..., ThreadedASGIHandler]) -> None:
    application = handler(4)
    keys = [f"Bearer {number}" for number in range(5)]

    async def test() -> None:
        for key in keys:
            await Asked(application, "/owned/7/", key).run()
        await Asked(application, "/owned/8/", SMALL).run()
        waiting = await begin(application, *keys, *keys)
        assert (application.shares.threads_of(7), application.shares.threads_of(8)) == (2, 0)
        waiting += await begin(application, SMALL)
        assert application.shares.threads_of(8) == 1
        assert await ends(waiting) == [200] * 11
        assert (application.shares.threads_of(7), application.shares.threads_of(8)) == (0, 0)

    run(test())


def test_a_request_that_is_canceled_gives_back_its_place(handler: Callable[..., ThreadedASGIHandler]) -> None:
    application = handler(2)

    async def test() -> None:
        waiting = await begin(application, *[GREEDY] * 4)
        waiting.pop().cancel()
        while application.unanswered > 3:
            await asyncio.sleep(0)
        assert await ends(waiting) == [200] * 3
        assert (await Asked(application, "/quick/", GREEDY).run()).status == 200
        assert application.unanswered == 0

    run(test())


def test_credentials_are_remembered_within_a_limit(
    handler: Callable[..., ThreadedASGIHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_shares, "MAX_REMEMBERED", 3)
    application = handler(1)

    async def test() -> None:
        for number in range(10):
            await Asked(application, f"/owned/{number + 1}/", f"Bearer {number}").run()
            assert len(application.shares._organizations) <= 3

    run(test())


@pytest.mark.django_db(transaction=True)
def test_an_api_key_and_a_session_are_known_by_their_organization() -> None:
    organization = factories.organization()
    key = factories.api_key(organization, "read")
    session = factories.browser(factories.dispatcher(organization)).cookies["sessionid"].value
    application = ThreadedASGIHandler(2)
    by_key = [(b"host", b"testserver"), (b"authorization", f"Bearer {key}".encode())]
    by_session = [(b"host", b"testserver"), (b"cookie", f"theme=dark; sessionid={session}".encode())]
    wrong = [(b"host", b"testserver"), (b"authorization", b"Bearer wrong")]

    async def test() -> None:
        for url, headers in (("/api/v1/jobs/", by_key), ("/health/", by_session), ("/api/v1/jobs/", wrong)):
            asked = Asked(application, url)
            asked._headers = headers
            await asked.run()

    run(test())
    callers = [application.shares.caller_of({"headers": headers, "path": "/"}) for headers in (by_key, by_session)]
    assert callers == [organization.pk] * 2
    assert application.shares.caller_of({"headers": wrong, "path": "/"}) < 0
