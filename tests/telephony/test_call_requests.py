"""The client that requests calls from Twilio: one request, one outcome, whatever the server does."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from dispatch.capacity.models import ProviderAccount
from dispatch.core.http import service_client
from dispatch.core.http.service_client import NotAnswered, ServiceClient
from dispatch.core.runtime import reachability, request_loop
from dispatch.telephony.providers import connections, twilio, twilio_calls
from dispatch.telephony.providers.base import CallRequest, Outcome, RateLimited, Rejected, Submitted, Unknown
from tests.harness.raw_server import Answer, Peer, RawServer
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.test_proxies import write_certificate

SID = "CA" + "c" * 32
ORDER = CallRequest(
    to="+16025550101",
    from_="+16025550100",
    voice_url="https://dispatch.example.com/voice?a=1&b=é#rc=3&rp=ct,rt,5xx",
    status_url="https://dispatch.example.com/status",
    ring_timeout_s=20,
    time_limit_s=60,
    leave_within_s=30.0,
)


def account(number: int = 1, **fields: Any) -> ProviderAccount:
    return ProviderAccount(account_sid=f"AC{number:032d}", auth_token="token", **fields)


def created(peer: Peer) -> None:
    peer.answer(201, json.dumps({"sid": SID, "status": "queued"}).encode())


def responds(status: int, body: bytes = b"{}", *headers: str) -> Answer:
    return lambda peer: peer.answer(status, body, *headers)


def breaks_off(data: bytes) -> Answer:
    """Send only this, and reset the connection."""

    def answer(peer: Peer) -> None:
        peer.send(data)
        peer.reset()

    return answer


def refuses(status: int, code: int, message: str = "No.", *headers: str) -> Answer:
    return responds(status, json.dumps({"code": code, "message": message}).encode(), *headers)


@pytest.fixture(autouse=True)
def _fresh_client(settings: Any) -> Iterator[None]:
    settings.PROVIDER_TIMEOUT_S = PATIENCE
    request_loop.stop()
    yield
    request_loop.stop()


@pytest.fixture
def serve(settings: Any) -> Iterator[Callable[..., RawServer]]:
    """Start a server that stands for Twilio."""
    servers: list[RawServer] = []

    def start(*answers: Answer, **options: Any) -> RawServer:
        server = RawServer(list(answers), **options).__enter__()
        servers.append(server)
        settings.SIMULATOR_URL = server.url
        return server

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def place(number: int = 1, order: CallRequest = ORDER, **fields: Any) -> Outcome:
    return twilio.make(account(number, **fields)).place(order)


@pytest.mark.parametrize("key", ["", "SK" + "2" * 32])
@pytest.mark.parametrize(
    "order",
    [
        ORDER,
        replace(ORDER, fallback_url="https://dispatch.example.com/fallback"),
        replace(ORDER, detect_machine=True),
        replace(ORDER, detect_machine=True, waits_for_beep=True, voice_url="https://x.example.com/?q=a+b%20c~*'"),
    ],
)
def test_a_request_is_the_one_that_the_sdk_sends(
    serve: Callable[..., RawServer], order: CallRequest, key: str
) -> None:
    server = serve(created)
    made = twilio.make(account(api_key_sid=key, api_key_secret="secret" if key else ""))
    assert made.place(order) == Submitted(SID)
    extra: dict[str, Any] = {}
    if order.fallback_url:
        extra["fallback_url"] = order.fallback_url
    if order.detect_machine:
        extra["machine_detection"] = "DetectMessageEnd" if order.waits_for_beep else "Enable"
    made._client().calls.create(
        to=order.to,
        from_=order.from_,
        url=order.voice_url,
        method="POST",
        status_callback=order.status_url,
        status_callback_method="POST",
        status_callback_event=["ringing", "answered", "completed"]
        if order.detect_machine
        else ["ringing", "completed"],
        timeout=order.ring_timeout_s,
        time_limit=order.time_limit_s,
        **extra,
    )
    ours, sdks = server.requests
    assert ours.line == sdks.line
    assert sorted(parse_qsl(ours.body.decode())) == sorted(parse_qsl(sdks.body.decode()))
    assert sorted(ours.body.split(b"&")) == sorted(sdks.body.split(b"&"))
    for name in ("authorization", "content-type", "accept", "host"):
        assert ours.headers[name] == sdks.headers[name]


@pytest.mark.parametrize(("region", "edge"), [("", ""), ("ie1", ""), ("", "dublin"), ("au1", "sydney")])
def test_regions_and_edges_have_the_servers_of_the_sdk(settings: Any, region: str, edge: str) -> None:
    settings.SIMULATOR_URL = ""
    client = twilio.make(account(region=region, edge=edge))._client()
    assert twilio_calls.server_of(region, edge) == client.get_hostname(client.api.base_url)


@pytest.mark.parametrize(
    ("answer", "kind", "sees"),
    [
        (responds(201, b'{"sid": ""}'), Unknown, "without an id"),
        (responds(201, b"<html>"), Unknown, "without an id"),
        (responds(201, b'{"sid": ' + b"[" * 50_000), Unknown, "without an id"),
        (responds(201, b"\xff\xfe\x00"), Unknown, "without an id"),
        (responds(201, b'["sid"]'), Unknown, "without an id"),
        (responds(201, b'{"sid": "' + SID.encode() + b'", "x": "' + b"x" * 400_000 + b'"}'), Unknown, "id"),
        (responds(204, b""), Unknown, "without an id"),
        (responds(500), Unknown, "500"),
        (refuses(503, 20503), Unknown, "503"),
        (responds(408), Unknown, "408"),
        (responds(302, b"", "Location: /elsewhere"), Unknown, "302"),
        (responds(307, b"", "Location: /elsewhere"), Unknown, "307"),
        (refuses(400, 21211, "Invalid"), Rejected, "Invalid (error 21211)"),
        (refuses(401, 20003, "Authenticate"), Rejected, "Authenticate (error 20003)"),
        (responds(403, b"<html>"), Rejected, "error 403"),
        (responds(400, b"x" * 400_000), Rejected, "error 400"),
        (refuses(400, 10004), RateLimited, "10004"),
        (responds(429, b"garbage"), RateLimited, "429"),
        (lambda peer: peer.reset(), Unknown, ""),
        (lambda peer: peer.close(), Unknown, ""),
        (breaks_off(b"HTTP/1.1 201 Created\r\nContent-"), Unknown, ""),
        (breaks_off(b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{"), Unknown, ""),
        (breaks_off(b"HTTP/1.1 400 No\r\nContent-Length: 99\r\n\r\n{"), Unknown, ""),
        (breaks_off(b"not http at all\r\n\r\n"), Unknown, ""),
        (breaks_off(b"HTTP/1.1 201 C\r\nX: " + b"x" * 99_999), Unknown, ""),
    ],
)  # fmt: skip
def test_each_answer_has_its_outcome_and_no_request_is_repeated(
    serve: Callable[..., RawServer], answer: Answer, kind: type, sees: str
) -> None:
    server = serve(answer)
    outcome = place()
    assert isinstance(outcome, kind), outcome
    assert sees in str(getattr(outcome, "reason", ""))
    assert len(server.requests) == 1


@pytest.mark.parametrize(("header", "least_s", "most_s"), [("Retry-After: 7", 7, 7), ("X-None: 1", 1, 1.5)])
def test_a_refusal_as_too_many_says_how_long_to_wait(
    serve: Callable[..., RawServer], header: str, least_s: float, most_s: float
) -> None:
    serve(refuses(429, 20429, "Too many", header))
    outcome = place()
    assert isinstance(outcome, RateLimited)
    assert not outcome.is_unreachable
    assert least_s <= outcome.retry_after_s <= most_s


def test_a_request_on_a_closed_connection_is_never_sent_twice(serve: Callable[..., RawServer]) -> None:
    """An idempotent request would be repeated by the HTTP library."""
    server = serve(created, lambda peer: peer.reset(), created)
    assert place() == Submitted(SID)
    assert isinstance(place(), Unknown)
    first, second = server.requests
    assert first.connection == second.connection, "the connection was reused"
    assert place() == Submitted(SID)
    assert len(server.requests) == 3


def test_a_connection_that_was_idle_for_long_is_not_reused(
    serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "KEEP_ALIVE_S", 0.05)
    server = serve(created)
    place()
    wait_until(lambda: (place(), len({one.connection for one in server.requests}) > 1)[1], interval=0.1)


def test_a_server_that_never_answers_is_left_after_the_timeout(
    serve: Callable[..., RawServer], settings: Any
) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.3
    server = serve(lambda peer: peer.hang())
    began = time.monotonic()
    assert isinstance(place(), Unknown)
    assert 0.2 < time.monotonic() - began < PATIENCE
    assert len(server.requests) == 1


def test_an_answer_that_trickles_ends_with_the_timeout(serve: Callable[..., RawServer], settings: Any) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.5

    def trickle(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 201 Created\r\nContent-Length: 9999\r\n\r\n")
        while not peer.server.closed.wait(0.05):
            peer.send(b" ")

    serve(trickle)
    began = time.monotonic()
    assert isinstance(place(), Unknown)
    assert time.monotonic() - began < PATIENCE


def test_a_refused_connection_was_certainly_not_processed(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings.SIMULATOR_URL = f"http://127.0.0.1:{port}"
    assert place() == RateLimited(2.0, "the provider could not be reached", is_unreachable=True)
    assert reachability.process.failing() == {settings.SIMULATOR_URL}


def test_a_name_without_an_address_was_certainly_not_processed(settings: Any) -> None:
    settings.SIMULATOR_URL = "http://nowhere.invalid"
    outcome = place()
    assert isinstance(outcome, RateLimited)
    assert outcome.is_unreachable


# --- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return write_certificate(tmp_path / "server.pem")


def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_that_nobody_vouches_for_is_refused(
    serve: Callable[..., RawServer], certificate: Path
) -> None:
    server = serve(created, tls=server_tls(certificate))
    outcome = place()
    assert isinstance(outcome, RateLimited)
    assert outcome.is_unreachable
    assert server.requests == []


def test_a_certificate_of_another_host_is_refused(
    serve: Callable[..., RawServer], certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(connections, "_verification", lambda: trusted)
    server = serve(created, tls=server_tls(certificate))  # it is not that of 127.0.0.1
    assert isinstance(place(), RateLimited)
    assert server.requests == []


def test_a_handshake_that_takes_too_long_sent_nothing(serve: Callable[..., RawServer], settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        settings.SIMULATOR_URL = f"https://127.0.0.1:{silent.getsockname()[1]}"
        outcome = place(order=replace(ORDER, leave_within_s=0.3))
    assert isinstance(outcome, RateLimited)
    assert outcome.is_unreachable


# --- Abandoned and late requests


def test_a_request_that_was_given_up_is_never_delivered() -> None:
    body = b"x" * 8_000_000

    async def give_up(port: int) -> None:
        client = ServiceClient(requests=1, per_key=1, abandon_after_s=PATIENCE)
        try:
            with pytest.raises(NotAnswered):
                await client.post(f"http://127.0.0.1:{port}/", body, {}, key=1, send_within_s=1.0, timeout_s=0.5)
        finally:
            await client.close()

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # the server takes only the beginning
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        asyncio.run(give_up(listener.getsockname()[1]))
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE)
        received = 0
        with connection:
            try:
                while chunk := connection.recv(65536):
                    received += len(chunk)
            except ConnectionResetError:
                pass
    assert received < len(body)


def test_nothing_is_sent_after_its_time(serve: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(created)
    send = service_client.TrackedRequest.send

    async def late(self: Any, connection: Any) -> Any:
        time.sleep(0.4)  # the loop is late, as in a process that was paused
        return await send(self, connection)

    monkeypatch.setattr(service_client.TrackedRequest, "send", late)
    outcome = place(order=replace(ORDER, leave_within_s=0.2))
    assert isinstance(outcome, RateLimited)
    assert server.requests == []


# --- Shares of accounts


def test_a_hanging_account_among_many_delays_no_other(serve: Callable[..., RawServer], settings: Any) -> None:
    settings.PROVIDER_REQUESTS, settings.PROVIDER_ACCOUNT_REQUESTS = 32, 8
    hanging = account(1)

    def by_account(peer: Peer) -> None:
        if hanging.account_sid in peer.request.line:
            peer.hang()
        created(peer)

    server = serve(by_account)
    clients = {number: twilio.make(account(number)) for number in range(1, 201)}

    hopeful = replace(ORDER, leave_within_s=1.0)

    def hang() -> int:
        return len([request for request in server.requests if hanging.account_sid in request.line])

    async def run() -> tuple[list[Outcome], list[Outcome]]:
        stuck = [asyncio.create_task(clients[1].place_async(hopeful)) for _ in range(40)]
        while hang() < 8:
            await asyncio.sleep(0.01)
        others = await asyncio.gather(*(clients[number].place_async(ORDER) for number in range(2, 201)))
        late: set[asyncio.Task[Outcome]] = set()
        while len(late) < 32:
            done, _ = await asyncio.wait(stuck, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            late |= done
            stuck = [task for task in stuck if task not in late]
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        return list(others), [task.result() for task in late]

    others, late = request_loop.run(run())
    assert hang() == 8
    assert others == [Submitted(SID)] * 199
    # The others of the account waited for a connection until their time was over: nothing was sent.
    assert late == [RateLimited(0.0, "all of its connections were in use")] * 32


def test_threads_share_the_connections_of_the_process(serve: Callable[..., RawServer]) -> None:
    server = serve(created)
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda number: place(number), range(1, 41)))
    assert outcomes == [Submitted(SID)] * 40
    assert len({request.connection for request in server.requests}) <= 8
