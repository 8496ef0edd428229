"""A process has one client per account, whatever the number of its threads, and closes idle connections."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony import providers
from dispatch.telephony.providers import twilio_http
from tests.benchmarks import noop_provider


class Client(noop_provider.Noop):
    """A client that counts how many are open."""

    open = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).open += 1

    def close(self) -> None:
        type(self).open -= 1


def make(account: ProviderAccount) -> Client:
    return Client()


@pytest.fixture(autouse=True)
def _fresh(settings: Any) -> Any:
    settings.PROVIDER_MODULES = {"counted": __name__}
    providers.reset_clients()
    Client.open = 0
    yield
    providers.reset_clients()


def account(pk: int, **fields: Any) -> ProviderAccount:
    return ProviderAccount(pk=pk, provider="counted", account_sid=f"AC{pk}", **fields)


def test_threads_share_the_client_of_an_account() -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = set(pool.map(lambda _: providers.for_account(account(1)), range(40)))
    assert len(clients) == Client.open == 1


def test_the_least_recently_used_clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "MAX_CLIENTS", 8)
    first = providers.for_account(account(1))
    for pk in range(2, 9):
        providers.for_account(account(pk))
    assert providers.for_account(account(1)) is first
    providers.for_account(account(9))
    assert Client.open == providers.MAX_CLIENTS
    assert providers.for_account(account(1)) is first


def test_idle_clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for pk in range(1, 6):
        providers.for_account(account(pk))
    monkeypatch.setattr(providers, "IDLE_S", 0.0)
    providers.for_account(account(6))
    assert Client.open == 1


def test_a_client_with_former_credentials_is_closed() -> None:
    same = account(1)
    first = providers.for_account(same)
    assert providers.for_account(same) is first
    same.auth_token = "new"
    assert providers.for_account(same) is not first
    assert Client.open == 1


# --- The HTTP client that threads share


class Echo(BaseHTTPRequestHandler):
    """Answer with a Retry-After that the path names, and with the port of the connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Retry-After", self.path.strip("/"))
        self.send_header("Set-Cookie", f"who={self.path.strip('/')}")
        self.send_header("X-Cookie", self.headers.get("Cookie", ""))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Any:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_threads_read_the_headers_of_their_own_responses(server: str) -> None:
    http, together = twilio_http.PooledHttp(trust_env=False), threading.Barrier(4)

    def ask(number: int) -> tuple[float | None, str]:
        together.wait()
        response = http.request("GET", f"{server}/{number}")
        together.wait()
        return http.retry_after_s(), response.headers["X-Cookie"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [(float(number), "") for number in range(4)]


def test_a_connection_that_was_idle_for_long_is_not_reused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    http = twilio_http.PooledHttp(trust_env=False)
    monkeypatch.setattr(twilio_http, "FRESH_S", 1e9)
    first = http.request("GET", f"{server}/1").text
    assert http.request("GET", f"{server}/1").text == first
    monkeypatch.setattr(twilio_http, "FRESH_S", -1.0)
    assert http.request("GET", f"{server}/1").text != first
