"""The guarded client goes through a real proxy on loopback, which sees checked addresses only."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from dispatch.core import checks
from dispatch.core.http import outbound_proxy
from dispatch.core.http.client import ForbiddenTarget, HttpClient, TargetUnreachable
from tests.core.targets import Names, target
from tests.core.test_checks import ids
from tests.support.waiting import PATIENCE

# 127.0.0.1 plays the public internet, 127.0.0.2 an internal address.
PUBLIC = (ipaddress.ip_network("127.0.0.1/32"),)


class Tunnels:
    """A proxy that knows only CONNECT, and what it was asked for."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self.answer, self.heads, self.port = answer, list[str](), 0

    @property
    def asked(self) -> list[str]:
        return [head.split("\r\n")[0] for head in self.heads]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"http://dispatch:p%40ss@127.0.0.1:{self.port}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.heads.append(head)
            writer.write(self.answer)
            if b" 200 " not in self.answer:
                writer.close()
                return
            host, _, port = head.split(" ")[1].rpartition(":")
            inner_reader, inner_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
    writer.close()


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE))


def client(proxy: str, **options: Any) -> HttpClient:
    return HttpClient(allowed=PUBLIC, proxy=proxy, **options)


def test_a_request_goes_through_the_proxy_to_the_checked_address() -> None:
    async def test() -> None:
        tunnels, names = Tunnels(), Names(shop_test=[["127.0.0.1"]])
        async with target() as there, tunnels.running() as proxy, client(proxy, resolver=names) as http:
            for _ in range(2):
                answer = await http.post(there.url("shop.test"), b"{}", {}, PATIENCE)
                assert answer.status == 200
        assert tunnels.asked == [f"CONNECT 127.0.0.1:{there.port} HTTP/1.1"]  # one tunnel, and no name
        assert "Proxy-Authorization: Basic ZGlzcGF0Y2g6cEBzcw==" in tunnels.heads[0]
        assert [asked.line for asked in there.requests] == ["POST /hook HTTP/1.1"] * 2
        assert there.requests[0].headers["host"] == f"shop.test:{there.port}"
        assert "proxy-authorization" not in there.requests[0].headers

    run(test())


@pytest.mark.parametrize("host", ["127.0.0.2", "inside.test", "mixed.test"])
def test_the_guard_holds_before_the_proxy(host: str) -> None:
    async def test() -> None:
        tunnels = Tunnels()
        names = Names(inside_test=[["127.0.0.2"]], mixed_test=[["127.0.0.1", "127.0.0.2"]])
        async with tunnels.running() as proxy, client(proxy, resolver=names) as http:
            with pytest.raises(ForbiddenTarget):
                await http.post(f"http://{host}:8080/", b"{}", {}, PATIENCE)
        assert tunnels.heads == []

    run(test())


def test_a_name_that_changes_its_address_gains_nothing_through_the_proxy() -> None:
    async def test() -> None:
        closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        tunnels, names = Tunnels(), Names(rebinding_test=[["127.0.0.1"], ["127.0.0.2"]])
        async with (
            target(closing) as there,
            tunnels.running() as proxy,
            client(proxy, resolver=names, dns_ttl_s=0) as http,
        ):
            await http.post(there.url("rebinding.test"), b"{}", {}, PATIENCE)
            with pytest.raises(ForbiddenTarget):
                await http.post(there.url("rebinding.test"), b"{}", {}, PATIENCE)
        assert tunnels.asked == [f"CONNECT 127.0.0.1:{there.port} HTTP/1.1"]

    run(test())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        b"HTTP/1.1 407 Authenticate\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
def test_a_proxy_that_refuses_is_an_unreachable_target_and_nothing_was_sent(answer: bytes) -> None:
    async def test() -> None:
        tunnels = Tunnels(answer)
        async with target() as there, tunnels.running() as proxy, client(proxy) as http:
            with pytest.raises(TargetUnreachable, match="outbound proxy") as refused:
                await http.post(there.url(), b"{}", {}, PATIENCE)
        assert not refused.value.sent
        assert there.connections == 0

    run(test())


@pytest.mark.parametrize(
    "url",
    ["proxy:3128", "https://proxy:3128", "http://proxy", "http://:3128", "http://proxy:3128/path", "http://[::1"],
)
def test_a_proxy_that_cannot_be_meant_is_refused_at_start(settings: Any, url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="OUTBOUND_PROXY_URL"):
        outbound_proxy.parse(url)
    settings.OUTBOUND_PROXY_URL = url
    assert ids(checks.called_addresses(None)) == ["dispatch.E061"]
