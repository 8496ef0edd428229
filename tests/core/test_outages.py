"""With the database unavailable, locked or full, requests get a 503, and the web process survives."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import requests
from django.db import InternalError, OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from psycopg_pool import PoolTimeout
from psycopg_pool.base import AttemptWithBackoff
from rest_framework.views import APIView
from twilio.request_validator import RequestValidator

from accounts.auth.permissions import ANYONE
from dispatch import urls
from dispatch.core.api import problems
from dispatch.core.db.errors import is_temporary
from dispatch.core.db.postgres import base as postgres
from dispatch.outbox.models import MessageGroup
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.soak.reply_cuts import ReplyCutter
from tests.support import factories
from tests.support.database import reconnect
from tests.support.processes import Process, database_address, free_port, running
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.conftest import Caller, caller, listener

__all__ = ["caller", "listener"]

pytestmark = pytest.mark.django_db(transaction=True)


def failing(request: HttpRequest) -> HttpResponse:
    """A page whose statement the database cancels."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '10ms'")
        try:
            cursor.execute("SELECT pg_sleep(5)")
        finally:
            cursor.execute("RESET statement_timeout")
    raise AssertionError


class FailingView(APIView):
    required = {"get": ANYONE}

    def get(self, request: Any) -> Any:
        failing(request)


class Routes:
    urlpatterns = [
        path("page/", failing),
        path("telephony/hook", failing),
        path("api/v1/failing/", FailingView.as_view()),
        path("", include(urls)),
    ]
    handler500 = urls.handler500


@pytest.mark.parametrize("address", ["/page/", "/telephony/hook", "/api/v1/failing/"])
def test_a_statement_that_is_cut_off_is_a_503(address: str, settings: Any) -> None:
    settings.ROOT_URLCONF = Routes
    user = factories.admin(factories.organization())
    api = Api(user=user)
    answer = api.get(address)
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    if address == "/page/":
        assert "Temporarily unavailable" in answer.content.decode()
    else:
        assert answer["Content-Type"] == problems.CONTENT_TYPE
        assert answer.json()["type"] == "urn:dispatch:problem:unavailable"


def test_transient_errors_are_distinguished_from_permanent_ones() -> None:
    def django(kind: type[Exception], cause: Exception) -> Exception:
        error = kind("x")
        error.__cause__ = cause
        return error

    passing = [
        OperationalError("x"),
        PoolTimeout("x"),
        psycopg.InterfaceError("x"),
        django(OperationalError, psycopg.errors.LockNotAvailable()),
        django(OperationalError, psycopg.errors.DiskFull()),
        django(InternalError, psycopg.errors.ReadOnlySqlTransaction()),
        django(InternalError, psycopg.errors.IdleInTransactionSessionTimeout()),
    ]
    staying = [
        None,
        ValueError("x"),
        InternalError("x"),
        django(OperationalError, psycopg.errors.ProgramLimitExceeded()),
        psycopg.errors.UniqueViolation(),
    ]
    assert [is_temporary(error) for error in passing] == [True] * len(passing)
    assert [is_temporary(error) for error in staying] == [False] * len(staying)


@pytest.fixture
def small_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use one pooled connection, waited for half a second."""
    reconnect()
    pool = {"min_size": 0, "max_size": 1, "timeout": 0.5}
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", pool)
    yield
    monkeypatch.undo()
    postgres.breaker.reset()
    reconnect()


@pytest.mark.usefixtures("small_pool")
def test_a_pool_that_failed_fails_fast_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.breaker, "pause_s", PATIENCE)
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    with pytest.raises(OperationalError):
        connection.ensure_connection()
    for _ in range(50):  # none waits for the pool
        with pytest.raises(OperationalError, match="a moment ago"):
            connection.ensure_connection()
    monkeypatch.setattr(postgres.breaker, "pause_s", 0.3)
    postgres.breaker.record_failure()
    monkeypatch.undo()
    connection.close_pool()
    wait_until(connects)
    connection.ensure_connection()  # and all requests work again


def test_a_pool_connects_soon_after_a_long_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.breaker, "pause_s", 0.3)
    monkeypatch.setattr(AttemptWithBackoff, "INITIAL_DELAY", 3600.0)  # as if it had doubled for an hour
    with ReplyCutter(("127.0.0.1", free_port())) as proxy:  # nothing listens there
        reconnect()
        monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        monkeypatch.setitem(connection.settings_dict, "PORT", str(proxy.port))
        monkeypatch.setitem(connection.settings_dict["OPTIONS"]["pool"], "timeout", 1)
        try:
            assert not connects()
            proxy.lead_to(database_address())
            wait_until(connects)
        finally:
            reconnect()


def connects() -> bool:
    try:
        connection.ensure_connection()
    except OperationalError:
        return False
    return True


@pytest.fixture
def web(test_environment: dict[str, str]) -> Iterator[tuple[str, Process]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {**test_environment, "PUBLIC_BASE_URL": url, "WEB_LOCK_TIMEOUT_S": "1"}
    with running("web", "--port", str(port), env=env) as process:
        wait_until(lambda: _status(f"{url}/readyz") == 200 or process.returncode is not None, message=process.log)
        assert process.returncode is None, process.log()
        yield url, process


def _status(url: str) -> int:
    try:
        return requests.get(url, timeout=PATIENCE).status_code
    except requests.RequestException:
        return 0


def test_a_stuck_row_lock_does_not_take_the_web_process(web: tuple[str, Process], caller: Caller) -> None:
    url, process = web
    organization = factories.organization()
    pool = factories.pool(organization, kind="messages")
    headers = {"Authorization": f"Bearer {factories.api_key(organization)}"}
    body = {"target_url": "https://example.com/x", "type": "a.b", "payload": 1, "group": "g", "pool": pool.code}

    def send(key: str, **more: Any) -> requests.Response:
        marked = {**headers, "Idempotency-Key": key}
        return requests.post(f"{url}/api/v1/messages/", json=body, headers=marked, timeout=PATIENCE, **more)

    assert send("first").status_code == 202
    call = caller.create("+16025550101")
    Call.objects.filter(pk=call.pk).update(status="submitted", sid="CA0001")
    with transaction.atomic(), ThreadPoolExecutor(25) as clients:
        assert MessageGroup.objects.select_for_update().filter(organization=organization)
        answers = [clients.submit(send, f"key-{n}") for n in range(24)]
        wait_until(lambda: waiting_for_locks() >= 3)
        assert _status(f"{url}/healthz") == 200
        assert hook(url, caller, call).status_code == 204
        found = [answer.result() for answer in answers]
        assert [answer.status_code for answer in found] == [503] * 24, process.log()
        assert {answer.headers["Retry-After"] for answer in found} == {"5"}
    assert Call.objects.get(pk=call.pk).status == "ringing"
    assert send("key-1").status_code == 202  # nothing was saved of the refused request


def hook(url: str, caller: Caller, call: Call) -> requests.Response:
    address = f"{url}/telephony/twilio/calls/{call.pk}/status"
    form = {
        "CallSid": "CA0001",
        "AccountSid": caller.sim.account_sid,
        "CallStatus": "ringing",
        "SequenceNumber": "1",
    }
    signature = RequestValidator(caller.sim.auth_token).compute_signature(address, form)
    return requests.post(address, data=form, headers={"X-Twilio-Signature": signature}, timeout=PATIENCE)


def waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return cursor.fetchone()[0]
