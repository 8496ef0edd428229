"""The guarded HTTP client against real servers on loopback: what it sends and refuses, and its timeouts."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from dispatch.core.http import client as http_client
from dispatch.core.http.client import ForbiddenTarget, HttpClient, TargetTimeout, TargetUnreachable
from dispatch.core.http.ssrf import Network
from tests.support.waiting import PATIENCE

from .targets import OK, Names, Request, Target, raw, target

# 127.0.0.1 plays the public internet, 127.0.0.2 an internal address.
PUBLIC: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.1/32"),)
INSIDE = "127.0.0.2"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE))


def client(**options: Any) -> HttpClient:
    return HttpClient(**{"allowed": PUBLIC, **options})


class TestWhatIsSent:
    def test_body_headers_and_response_are_unchanged(self) -> None:
        async def test() -> None:
            answer = b"HTTP/1.1 201 Made\r\nX-Kind: Test\r\nContent-Length: 5\r\n\r\nhello"
            async with target(answer) as there, client() as http:
                got = await http.post(there.url(), b'{"a":1}', {"X-Own": "1"}, PATIENCE)
            assert (got.status, got.headers["x-kind"], got.body_start) == (201, "Test", b"hello")
            assert not got.truncated
            assert 0 < got.elapsed_s < PATIENCE
            (asked,) = there.requests
            assert asked.line == "POST /hook HTTP/1.1"
            assert asked.body == b'{"a":1}'
            assert asked.headers["x-own"] == "1"
            assert asked.headers["host"] == f"127.0.0.1:{there.port}"
            assert asked.headers["accept-encoding"] == "identity"

        run(test())

    def test_get_has_no_body(self) -> None:
        async def test() -> None:
            async with target() as there, client() as http:
                assert (await http.get(there.url(path="/?q=1"), {}, PATIENCE)).status == 200
            assert there.requests[0].line == "GET /?q=1 HTTP/1.1"
            assert there.requests[0].body == b""

        run(test())

    def test_connections_are_reused(self) -> None:
        async def test() -> None:
            async with target() as there, client() as http:
                for _ in range(20):
                    await http.post(there.url(), b"{}", {}, PATIENCE)
            assert (there.connections, len(there.requests)) == (1, 20)

        run(test())

    def test_a_request_is_sent_once_even_when_a_reused_connection_breaks(self) -> None:
        async def answer_once(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(OK) if request.body == b"1" else writer.close()

        async def test() -> None:
            async with target(answer_once) as there, client() as http:
                await http.post(there.url(), b"1", {}, PATIENCE)
                with pytest.raises(TargetUnreachable) as broken:
                    await http.post(there.url(), b"2", {}, PATIENCE)
            assert broken.value.sent
            assert [asked.body for asked in there.requests] == [b"1", b"2"]

        run(test())

    def test_no_cookie_is_kept(self) -> None:
        async def test() -> None:
            answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
            async with target(answer) as there, client(resolver=Names(shop_test=[["127.0.0.1"]])) as http:
                for _ in range(2):
                    await http.post(there.url("shop.test"), b"{}", {}, PATIENCE)
            assert all("cookie" not in asked.headers for asked in there.requests)

        run(test())

    @pytest.mark.parametrize(
        "headers",
        [{"Host": "other"}, {"content-length": "3"}, {"Transfer-Encoding": "chunked"}, {"Connection": "close"},
         {"X-A": "b\r\nX-C: d"}, {"X-A": "b\n"}, {"X A": "b"}, {"": "b"}, {"X-A:": "b"}, {"X-A": "é"},
         {"X-A": "\x00"}],
    )  # fmt: skip
    def test_headers_that_could_split_a_request_are_refused(self, headers: dict[str, str]) -> None:
        async def test() -> None:
            async with target() as there, client() as http:
                with pytest.raises(ValueError, match="header"):
                    await http.post(there.url(), b"{}", headers, PATIENCE)
            assert there.connections == 0

        run(test())


class TestWhatIsRefused:
    def test_private_address_is_not_connected_to(self) -> None:
        async def test() -> None:
            async with target(address=INSIDE) as inside, client() as http:
                with pytest.raises(ForbiddenTarget, match="private"):
                    await http.post(inside.url(), b"{}", {}, PATIENCE)
            assert inside.connections == 0

        run(test())

    def test_a_name_is_refused_when_any_of_its_addresses_is(self) -> None:
        async def test() -> None:
            names = Names(mixed_test=[["127.0.0.1", INSIDE]])
            async with target() as there, client(resolver=names) as http:
                with pytest.raises(ForbiddenTarget):
                    await http.post(there.url("mixed.test"), b"{}", {}, PATIENCE)
            assert there.connections == 0

        run(test())

    def test_dns_rebinding_is_prevented(self) -> None:
        async def test() -> None:
            closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            names = Names(rebinding_test=[["127.0.0.1"], [INSIDE]])
            async with (
                target(closing) as there,
                target(address=INSIDE, port=there.port) as inside,
                client(resolver=names, dns_ttl_s=0) as http,
            ):
                # One lookup per connection, which goes to the address that was checked.
                assert (await http.post(there.url("rebinding.test"), b"{}", {}, PATIENCE)).status == 200
                assert names.asked == ["rebinding.test"]
                with pytest.raises(ForbiddenTarget):
                    await http.post(there.url("rebinding.test"), b"{}", {}, PATIENCE)
            assert (there.connections, inside.connections) == (1, 0)
            assert there.requests[0].headers["host"] == f"rebinding.test:{there.port}"

        run(test())

    def test_the_address_is_checked_once_more_as_the_socket_is_made(self) -> None:
        async def test() -> None:
            async with target(address=INSIDE) as inside, client() as http:
                # Directly to the session, past the checks of URL and name: only the socket's check is left.
                with pytest.raises(Exception, match="private or loopback"):
                    await http._session(allow_private=False).get(inside.url())
            assert inside.connections == 0

        run(test())

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_answers_and_not_followed(self, status: int) -> None:
        async def test() -> None:
            async with target(address=INSIDE) as inside:
                answer = f"HTTP/1.1 {status} Go\r\nLocation: {inside.url()}\r\nContent-Length: 0\r\n\r\n".encode()
                async with target(answer) as there, client() as http:
                    assert (await http.post(there.url(), b"{}", {}, PATIENCE)).status == status
            assert inside.connections == 0

        run(test())

    def test_proxies_of_the_environment_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test() -> None:
            async with target(address=INSIDE) as proxy, target() as there, client() as http:
                for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                    monkeypatch.setenv(name, proxy.url(path=""))
                assert (await http.post(there.url(), b"{}", {}, PATIENCE)).status == 200
            assert proxy.connections == 0

        run(test())

    def test_connection_to_a_private_network_is_not_reused_elsewhere(self) -> None:
        async def test() -> None:
            async with target() as there, client(allowed=()) as http:
                assert (await http.post(there.url(), b"{}", {}, PATIENCE, allow_private=True)).status == 200
                with pytest.raises(ForbiddenTarget):
                    await http.post(there.url(), b"{}", {}, PATIENCE)
                named = client(allowed=(), resolver=Names(own_test=[["127.0.0.1"]]))
                async with named:
                    assert (
                        await named.post(there.url("own.test"), b"{}", {}, PATIENCE, allow_private=True)
                    ).status == 200
                    with pytest.raises(ForbiddenTarget):
                        await named.post(there.url("own.test"), b"{}", {}, PATIENCE)
            assert len(there.requests) == 2

        run(test())

    def test_networks_and_ports_come_from_the_settings(self, settings: Any) -> None:
        async def test(there: Target) -> None:
            settings.HTTP_ALLOWED_NETWORKS = []
            async with HttpClient() as http:
                with pytest.raises(ForbiddenTarget):
                    await http.post(there.url(), b"{}", {}, PATIENCE)
            settings.HTTP_ALLOWED_NETWORKS = ["127.0.0.0/8"]
            async with HttpClient() as http:
                assert (await http.post(there.url(), b"{}", {}, PATIENCE)).status == 200
                with pytest.raises(ForbiddenTarget, match="port 81"):
                    await http.post("http://127.0.0.1:81/", b"{}", {}, PATIENCE)
                settings.HTTP_ALLOWED_PORTS = [81]
                with pytest.raises(TargetUnreachable):
                    await http.post("http://127.0.0.1:81/", b"{}", {}, PATIENCE)

        async def whole() -> None:
            async with target() as there:
                await test(there)

        run(whole())


class TestWhatComesBack:
    def test_a_long_answer_is_cut_and_its_connection_used_again(self) -> None:
        async def test() -> None:
            body = bytes(range(256)) * 400
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            async with target(answer) as there, client() as http:
                for _ in range(2):
                    got = await http.post(there.url(), b"{}", {}, PATIENCE)
                    assert got.body_start == body[: http_client.KEPT_BYTES]
                    assert got.truncated
            assert there.connections == 1

        run(test())

    def test_endless_response_is_abandoned(self) -> None:
        sent = 0

        async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536

        async def test() -> None:
            async with target(endless) as there, client() as http:
                got = await http.post(there.url(), b"{}", {}, PATIENCE)
            assert (got.status, len(got.body_start), got.truncated) == (200, http_client.KEPT_BYTES, True)
            assert sent < 64 * 1024 * 1024

        run(test())

    def test_nothing_is_decompressed(self) -> None:
        import gzip

        async def test() -> None:
            bomb = gzip.compress(b"\0" * 1_000_000)
            head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
            async with target(head + bomb) as there, client() as http:
                got = await http.post(there.url(), b"{}", {}, PATIENCE)
            assert got.body_start == bomb[: http_client.KEPT_BYTES]

        run(test())

    @pytest.mark.parametrize(
        "answer",
        [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
         b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
         b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
    )  # fmt: skip
    def test_broken_answers_are_no_answers(self, answer: bytes) -> None:
        async def broken(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            writer.close()

        async def test() -> None:
            async with target(broken) as there, client() as http:
                with pytest.raises(TargetUnreachable) as failed:
                    await http.post(there.url(), b"{}", {}, PATIENCE)
            assert failed.value.sent

        run(test())


class TestWhenItGivesUp:
    def test_time_limit_covers_a_slow_response(self) -> None:
        async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

        async def test() -> None:
            async with target(drip) as there, client() as http:
                begin = time.monotonic()
                with pytest.raises(TargetTimeout) as late:
                    await http.post(there.url(), b"{}", {}, 0.4)
                assert time.monotonic() - begin >= 0.4  # and it ended, although the response never does
                assert late.value.sent

        run(test())

    def test_silent_name_server_times_out_and_nothing_is_sent(self) -> None:
        class Silent(Names):
            async def resolve(self, *arguments: Any, **more: Any) -> Any:
                await asyncio.Event().wait()

        async def test() -> None:
            async with client(resolver=Silent()) as http:
                with pytest.raises(TargetTimeout) as late:
                    await http.post("http://silent.test/", b"{}", {}, 0.2)
            assert not late.value.sent

        run(test())

    def test_refused_connection_and_unknown_name_fail(self) -> None:
        async def test() -> None:
            async with target() as there:
                gone = there.url()
            async with client(resolver=Names()) as http:
                for url in (gone, "http://unknown.test/"):
                    with pytest.raises(TargetUnreachable) as failed:
                        await http.post(url, b"{}", {}, PATIENCE)
                    assert not failed.value.sent

        run(test())

    def test_system_resolver_reports_unknown_names(self) -> None:
        async def test() -> None:
            async with client() as http:
                with pytest.raises(TargetUnreachable):
                    await http.post("http://does-not-exist.invalid/", b"{}", {}, PATIENCE)
                async with target() as there:  # and it knows the usual names
                    assert (await client(allowed=(*PUBLIC, ipaddress.ip_network("::1/128"))).get(
                        there.url("localhost"), {}, PATIENCE)).status == 200  # fmt: skip

        run(test())


def test_the_modules_own_functions_share_one_client_per_loop(settings: Any) -> None:
    settings.HTTP_ALLOWED_NETWORKS = ["127.0.0.1/32"]

    async def test() -> None:
        async with target(raw(OK)) as there:
            for _ in range(3):
                assert (await http_client.post(there.url(), b"{}", {}, PATIENCE)).status == 200
            assert (await http_client.get(there.url(), {}, PATIENCE)).body_start == b"ok"
            await http_client.close()
            await http_client.close()
        assert there.connections == 1

    run(test())
    run(test())
