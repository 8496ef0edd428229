"""POSTs written on aiohttp's connections: its own request, and connections that are reused only when clean."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from dispatch.core.http import exchange
from dispatch.core.http.client import TargetUnreachable
from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE

from .targets import OK, Names, Request, target
from .test_http_client import client, run

HEADERS = {"Content-Type": "application/json", "X-Tab": "a\tb", "accept": "text/plain", "user-agent": "Own/1"}


@pytest.mark.parametrize("headers", [{}, HEADERS], ids=["defaults", "own"])
def test_request_is_the_one_that_aiohttp_writes(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with target() as there, client() as http:
            for most in (exchange.MAX_BODY_BYTES, 0):  # aiohttp writes what is longer
                monkeypatch.setattr(exchange, "MAX_BODY_BYTES", most)
                for path in ("/hook", "/a%20b/ü?q=1&r=%2F#part", ""):
                    assert (await http.post(there.url(path=path), b"{}", headers, PATIENCE)).status == 200
        ours, theirs = there.requests[:3], there.requests[3:]
        assert [request.line for request in ours] == [request.line for request in theirs]
        assert ours == theirs

    run(test())


def test_long_body_arrives_whole() -> None:
    async def test() -> None:
        async with target() as there, client() as http:
            for size in (exchange.MAX_BODY_BYTES, exchange.MAX_BODY_BYTES + 1, 0):
                assert (await http.post(there.url(), b"x" * size, {}, PATIENCE)).status == 200
                assert len(there.requests[-1].body) == size
        assert there.connections == 1

    run(test())


@pytest.mark.parametrize(
    ("answer", "body", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde", 1),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", 2),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", b"", 2),
    ],
    ids=["chunked", "interim", "close", "old", "empty", "upgraded"],
)
def test_connection_is_reused_only_after_a_complete_response(answer: bytes, body: bytes, connections: int) -> None:
    async def test() -> None:
        async with target(answer) as there, client() as http:
            for _ in range(2):
                assert (await http.post(there.url(), b"{}", {}, PATIENCE)).body_start == body
        assert (there.connections, len(there.requests)) == (connections, 2)

    run(test())


def test_response_without_length_ends_with_the_connection() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        writer.close()

    async def test() -> None:
        async with target(answer) as there, client() as http:
            for _ in range(2):
                assert (await http.post(there.url(), b"{}", {}, PATIENCE)).body_start == b"until the end"
        assert there.connections == 2

    run(test())


def test_connection_whose_response_was_not_read_whole_serves_no_other_request() -> None:
    body = b"x" * (32 * exchange.READ_BYTES)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def test() -> None:
        async with target(answer) as there, client() as http:
            for _ in range(3):
                assert (await http.post(there.url(), b"{}", {}, PATIENCE)).truncated
        assert there.connections == 3

    run(test())


def test_surplus_bytes_after_a_response_answer_no_other_request() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"HTTP/1.1 500 Forged\r\nContent-Length: 0\r\n\r\n" if request.body == b"1" else OK)

    async def test() -> None:
        async with target(answer) as there, client() as http:
            for body in (b"1", b"2", b"1", b"3"):
                assert (await http.post(there.url(), body, {}, PATIENCE)).status == 200
        assert [request.body for request in there.requests] == [b"1", b"2", b"1", b"3"]

    run(test())


def test_canceled_request_closes_its_connection() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.body == b"slow":
            await asyncio.Event().wait()
        writer.write(OK)

    async def test() -> None:
        async with target(answer) as there, client() as http:
            assert (await http.post(there.url(), b"1", {}, PATIENCE)).status == 200
            slow = asyncio.create_task(http.post(there.url(), b"slow", {}, PATIENCE))
            while len(there.requests) < 2:
                await asyncio.sleep(0)
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            assert (await http.post(there.url(), b"3", {}, PATIENCE)).status == 200
        assert there.connections == 2

    run(test())


def test_request_on_a_connection_that_closes_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with target() as there, client() as http:
            assert (await http.post(there.url(), b"1", {}, PATIENCE)).status == 200
            connector = http._session(allow_private=False).connector
            assert connector is not None
            connect = connector.connect

            async def connect_and_close(*arguments: object, **more: object) -> object:
                connection = await connect(*arguments, **more)  # type: ignore[arg-type]
                connection.transport.close()
                return connection

            monkeypatch.setattr(connector, "connect", connect_and_close)
            with pytest.raises(TargetUnreachable) as failed:
                await http.post(there.url(), b"2", {}, PATIENCE)
            assert not failed.value.sent
        assert [request.body for request in there.requests] == [b"1"]

    run(test())


def test_tls_is_verified_and_a_context_shares_no_connection(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    certificate, key = authority.issue("server")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "pair.pem").write_text(f"{key}\n{certificate}\n")
    serving.load_cert_chain(tmp_path / "pair.pem")
    trusting, wary = (ssl.create_default_context(cafile=str(own.file)) for own in (authority, stranger))

    async def test() -> None:
        names = Names(other_test=[["127.0.0.1"]])
        async with target(tls=serving) as there, client(tls=trusting, resolver=names) as http:
            url = there.url().replace("http:", "https:")
            assert (await http.post(url, b"1", {}, PATIENCE)).status == 200
            refused = [(url, wary), (url.replace("127.0.0.1", "other.test"), None)]
            for address, tls in refused:
                with pytest.raises(TargetUnreachable, match="certificate verify failed") as failed:
                    await http.post(address, b"2", {}, PATIENCE, tls=tls)
                assert not failed.value.sent
            own = ssl.create_default_context(cafile=str(authority.file))
            assert (await http.post(url, b"3", {}, PATIENCE, tls=own)).status == 200
            assert (await http.post(url, b"4", {}, PATIENCE)).status == 200
        assert [request.body for request in there.requests] == [b"1", b"3", b"4"]
        assert there.connections == 2

    run(test())
