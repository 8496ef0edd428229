"""Send POST requests to a service that is configured, such as the phone provider: each at most once.

One client serves all accounts of a process. It follows no redirect, repeats no request, reads no proxy or
credential from the environment, and reuses no connection that was idle for long. Its caller learns whether a
request without an answer may have been processed. Unlike `client`, it connects to any address: the host is
configuration.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from dispatch.core.http import resolver as lookups
from dispatch.core.http.client import MAX_HEADER_BYTES, Response, TrackedRequest, describe_error
from dispatch.core.http.exchange import read_start
from dispatch.core.http.resolver import FairResolver, Lookup, SystemResolver
from dispatch.core.runtime.fair_shares import AsyncShares, SharesClosed

# A connection that was idle for longer is not reused: the server may be closing it, and the outcome of a request
# on a closing connection is unknown.
KEEP_ALIVE_S = 10.0
DNS_TTL_S = 5.0
KEPT_BYTES = 65_536


class NotSent(Exception):
    """The request was certainly not sent, so it may be repeated.

    `waited_for_server` is for how many seconds a connection to the server was tried; None if none was tried.
    """

    def __init__(self, message: str, waited_for_server: float | None = None) -> None:
        super().__init__(message)
        self.waited_for_server = waited_for_server


class NotAnswered(Exception):
    """The request was at least partly sent, and no complete answer was read. It may have been processed."""


def abandoning_options(timeout_s: float) -> list[tuple[int, int, int | bytes]]:
    """Return the options of a socket on which a request that was given up is never delivered later.

    Otherwise the kernel would go on sending it after the connection was closed. A service that is reached again
    would process a request that counts as not processed.
    """
    options: list[tuple[int, int, int | bytes]] = [
        (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),  # close() discards what was not sent
    ]
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux; also for a process that is paused
        options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1000)))
    return options


@dataclass
class _Sending(Lookup):
    """A request in progress. `timeout` limits the time to connect, and from the sending on the whole request."""

    timeout: asyncio.Timeout | None = None
    send_by: float = 0.0  # of the loop's clock, like `end_by`
    end_by: float = 0.0
    transport: asyncio.Transport | None = None

    def begin_sending(self, connection: Any) -> None:
        transport = connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionAbortedError("the connection was closed before the request was sent")
        if asyncio.get_running_loop().time() >= self.send_by:  # the process was paused, or the loop was late
            raise TimeoutError
        assert self.timeout is not None
        self.sent, self.transport = True, transport
        self.timeout.reschedule(self.end_by)

    def abandon(self) -> None:
        """Discard what the connection has not sent yet."""
        if self.transport is not None:
            self.transport.abort()


class ServiceClient:
    """Send requests in one event loop, at most `requests` at a time and `per_key` of one key.

    A key, such as an account, gets another request only while more are free than it has. `abandon_after_s`: for
    how long the kernel tries to deliver what was sent. `tls` verifies certificates (default: the system's
    authorities).
    """

    def __init__(
        self, *, requests: int, per_key: int, abandon_after_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._limit, self._abandon_after_s, self._tls = requests, abandon_after_s, tls
        self._shares = AsyncShares(requests, per_key)
        self._in_progress = 0
        self._resolver = FairResolver(SystemResolver(), DNS_TTL_S)
        self._session: aiohttp.ClientSession | None = None

    @property
    def in_progress(self) -> int:
        """Return how many requests have begun and not ended."""
        return self._in_progress

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        key: int,
        send_within_s: float,
        timeout_s: float,
        proxy: str = "",
    ) -> Response:
        """Send one POST, once, within `send_within_s` or not at all. Raises NotSent and NotAnswered.

        `timeout_s` covers everything once it has a free connection: resolving, connecting, sending and reading.
        `proxy` is the URL of an HTTP proxy to connect through.
        """
        self._in_progress += 1
        try:
            began = time.monotonic()
            if not self._shares.try_take(key):
                await self._wait_for_share(key, send_within_s)
            try:
                left_s = send_within_s - (time.monotonic() - began)
                return await self._send(url, body, headers, left_s, timeout_s, proxy)
            finally:
                self._shares.release(key)
        finally:
            self._in_progress -= 1

    async def close(self) -> None:
        """Close all connections. Requests in progress fail as their connections do."""
        self._shares.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._resolver.close()

    async def _wait_for_share(self, key: int, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._shares.take(key)
        except TimeoutError:
            raise NotSent("all of its connections were in use") from None
        except SharesClosed:
            raise NotSent("the client was closed") from None

    async def _send(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        within_s: float,
        timeout_s: float,
        proxy: str,
    ) -> Response:
        within_s = min(within_s, timeout_s)
        loop = asyncio.get_running_loop()
        start = loop.time()
        sending = _Sending(send_by=start + within_s, end_by=start + timeout_s)
        context = lookups.current.set(sending)
        try:
            async with asyncio.timeout(within_s) as sending.timeout:
                async with self._open_session().request(
                    "POST", url, data=body, headers=headers, allow_redirects=False, proxy=proxy or None
                ) as answer:
                    kept, truncated = await read_start(answer, KEPT_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            sending.abandon()
            if sending.sent:
                raise NotAnswered(_describe(error)) from error
            raise NotSent(_describe(error), within_s) from error
        except BaseException:  # canceled
            sending.abandon()
            raise
        finally:
            lookups.current.reset(context)
        names = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status, names, kept, loop.time() - start, truncated)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=self._resolver,
                socket_factory=functools.partial(_make_socket, abandoning_options(self._abandon_after_s)),
                use_dns_cache=False,  # the resolver caches
                limit=self._limit,
                limit_per_host=self._limit,
                keepalive_timeout=KEEP_ALIVE_S,
                ssl=self._tls if self._tls is not None else True,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                headers={"Accept-Encoding": "identity"},
                request_class=TrackedRequest,
            )
        return self._session


def _make_socket(options: list[tuple[int, int, int | bytes]], address_info: Any) -> socket.socket:
    family, kind, protocol, _, _ = address_info
    made = socket.socket(family, kind, protocol)
    for option in options:
        made.setsockopt(*option)
    return made


def _describe(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else describe_error(error)
