"""The probes of load balancers and orchestrators work while threads, database or Redis do not respond."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

from dispatch.core.web import asgi_handler, health, probes
from dispatch.core.web.asgi_handler import ThreadedASGIHandler
from dispatch.core.web.probes import Probes
from tests.core.outages import redis_away
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def forget_probes() -> Iterator[None]:
    """Make the probes reconnect with the current settings; restore them afterwards."""
    probes.reset()
    yield
    probes.reset()


class SilentServer:
    """A server that accepts connections and never answers, like a frozen host."""

    def __enter__(self) -> SilentServer:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def get(url: str, probe: str) -> requests.Response:
    return requests.get(f"{url}{probe}", headers={"Host": "10.2.3.4:8000"}, timeout=PATIENCE)


def codes(answer: requests.Response) -> list[str]:
    return [error["code"] for error in answer.json()["errors"]]


def test_liveness_answers_whatever_host_the_probe_names(app_url: str) -> None:
    answer = get(app_url, "/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")


@pytest.mark.parametrize("probe", ["/readyz", "/servez"])
def test_ready_when_everything_answers(app_url: str, probe: str) -> None:
    answer = get(app_url, probe)
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_only_readyz_is_503_while_redis_is_unavailable(app_url: str) -> None:
    with redis_away():
        answer = get(app_url, "/readyz")
        assert get(app_url, "/servez").status_code == 200
        assert get(app_url, "/healthz").status_code == 200
    assert answer.status_code == 503
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Retry-After"]
    assert codes(answer) == ["redis"]
    assert "nonexistent" not in answer.text  # our addresses are not disclosed
    wait_until(lambda: get(app_url, "/readyz").status_code == 200)


@pytest.mark.usefixtures("forget_probes")
def test_a_refused_database_is_503_without_its_address(app_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    for probe in ("/servez", "/readyz"):
        answer = get(app_url, probe)
        assert (answer.status_code, codes(answer)) == (503, ["database"])
        assert "nonexistent" not in answer.text
    assert get(app_url, "/healthz").status_code == 200


@pytest.mark.usefixtures("forget_probes")
def test_a_database_that_hangs_is_503_within_the_limit(app_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SilentServer() as server:
        monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        monkeypatch.setitem(connection.settings_dict, "PORT", str(server.port))
        began = time.monotonic()
        answer = get(app_url, "/servez")
        assert (answer.status_code, codes(answer)) == (503, ["database"])
        assert time.monotonic() - began < probes.LIMIT_S + 3
        threads = threading.active_count()
        with ThreadPoolExecutor(20) as flood:  # a flood of probes does not cost a thread each
            answers = list(flood.map(lambda _: get(app_url, "/servez"), range(20)))
        assert {answer.status_code for answer in answers} == {503}
        assert threading.active_count() <= threads + 5


@pytest.mark.usefixtures("forget_probes")
def test_missing_migrations_are_503(app_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.migrations.recorder import MigrationRecorder

    monkeypatch.setattr(health, "_migrated", False)
    last = MigrationRecorder.Migration.objects.filter(app="core").latest("pk")
    last_fields = {"app": last.app, "name": last.name, "applied": last.applied}
    last.delete()

    def lacks_migrations() -> str:
        answer = get(app_url, "/servez")
        return answer.json()["errors"][0]["detail"] if codes(answer) == ["migrations"] else ""

    try:
        detail = wait_until(lacks_migrations)  # on a busy machine the database may not respond in time
    finally:
        MigrationRecorder.Migration.objects.create(**last_fields)
    assert "manage.py migrate" in detail
    wait_until(lambda: get(app_url, "/servez").status_code == 200)


@pytest.mark.usefixtures("forget_probes")
def test_a_broken_connection_costs_no_probe(app_url: str) -> None:
    assert get(app_url, "/servez").status_code == 200
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'dispatch-probe' AND datname = current_database()"
        )
        assert cursor.fetchall()
    assert get(app_url, "/servez").status_code == 200


def test_probes_refuse_other_methods(app_url: str) -> None:
    answer = requests.post(f"{app_url}/healthz", timeout=PATIENCE)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert requests.head(f"{app_url}/healthz", timeout=PATIENCE).status_code == 200


_entered, _release = threading.Event(), threading.Event()


def blocked(request: HttpRequest) -> HttpResponse:
    _entered.set()
    _release.wait(PATIENCE)
    return HttpResponse("done")


urlpatterns = [path("blocked/", blocked)]


class Asked:
    """One ASGI request and its response."""

    def __init__(self, application: Any, path: str, authorization: str = "") -> None:
        self._headers = [(b"host", b"testserver")]
        if authorization:
            self._headers.append((b"authorization", authorization.encode()))
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self._application, self._path = application, path

    async def run(self) -> Asked:
        body = iter([{"type": "http.request", "body": b""}])

        async def receive() -> dict[str, Any]:
            for message in body:
                return message
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                self.body += message.get("body", b"")

        scope = {"type": "http", "path": self._path, "method": "GET", "headers": self._headers}
        await self._application(scope, receive, send)
        return self


def test_liveness_answers_while_every_thread_is_taken(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    application = Probes(ThreadedASGIHandler(2))
    _release.clear()

    async def ask() -> None:
        waiting = [asyncio.create_task(Asked(application, "/blocked/").run()) for _ in range(6)]
        await asyncio.sleep(0)
        probe = await asyncio.wait_for(Asked(application, "/healthz").run(), PATIENCE)
        assert probe.status == 200
        _release.set()
        assert [asked.status for asked in await asyncio.gather(*waiting)] == [200] * 6

    asyncio.run(ask())


def test_requests_beyond_the_queue_are_503_at_once(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    application = ThreadedASGIHandler(2, most_waiting=3)
    _release.clear()

    async def ask() -> None:
        callers = [Asked(application, "/blocked/", f"Bearer {number}") for number in range(2 + 3)]
        waiting = [asyncio.create_task(caller.run()) for caller in callers]
        while application.unanswered < len(waiting):
            await asyncio.sleep(0.01)
        refused = await asyncio.wait_for(Asked(application, "/blocked/").run(), PATIENCE)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        _release.set()
        assert [asked.status for asked in await asyncio.gather(*waiting)] == [200] * 5
        assert (await Asked(application, "/blocked/").run()).status == 200

    asyncio.run(ask())


def test_a_request_that_waited_too_long_is_503_without_work(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROOT_URLCONF = __name__
    application = ThreadedASGIHandler(1, longest_wait_s=5)
    now = [0.0]
    monkeypatch.setattr(asgi_handler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    _entered.clear()
    _release.clear()

    async def ask() -> None:
        first = asyncio.create_task(Asked(application, "/blocked/").run())
        while not _entered.is_set():
            await asyncio.sleep(0.01)
        late = asyncio.create_task(Asked(application, "/blocked/").run())
        while application.unanswered < 2:
            await asyncio.sleep(0.01)
        now[0] = 5.1
        _release.set()
        assert (await first).status == 200
        assert (await late).status == 503

    asyncio.run(ask())
