"""Send the requests whose URL a tenant may choose, through a guarded HTTP client.

    answer = await http_client.post("https://example.com/hook", b"{}", {"X-Kind": "test"}, timeout_s=10)

Every address that a name resolves to is checked. The connection goes to one of these addresses, which is checked
again when its socket is created, so that DNS rebinding has no effect. The client follows no redirect, uses no
proxy or credential from the environment, stores no cookie and decompresses nothing. Connections are reused within
one event loop and one policy. With OUTBOUND_PROXY_URL, every connection is a tunnel through that proxy to an
address that was checked here.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings

from dispatch.core.http import exchange, outbound_proxy
from dispatch.core.http import resolver as lookups
from dispatch.core.http.exchange import PostExchange, check_headers, read_start
from dispatch.core.http.resolver import FairResolver, Lookup, SystemResolver
from dispatch.core.http.ssrf import (
    ForbiddenTarget,
    Network,
    check_address,
    check_url,
    parse_literal,
    parse_networks,
)

__all__ = [
    "ForbiddenTarget",
    "HttpClient",
    "LookupDelayed",
    "Response",
    "TargetError",
    "TargetTimeout",
    "TargetUnreachable",
]

KEPT_BYTES = 4096
MAX_HEADER_BYTES = 8190
MAX_BODY_BYTES = 16 * 1024 * 1024
KEEP_ALIVE_S = 15.0
DNS_TTL_S = 5.0
CONNECTIONS = 2000
DEFAULT_HEADERS = {
    "User-Agent": "Dispatch/1", "Accept": "*/*", "Accept-Encoding": "identity",
    "Content-Type": "application/octet-stream",
}  # fmt: skip


E = TypeVar("E", bound=BaseException)


class TargetError(Exception):
    """The target gave no response. `sent` is whether the request may have reached it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class TargetTimeout(TargetError):
    """The request was not completed within the total time."""


class TargetUnreachable(TargetError):
    """The name does not resolve, the connection was refused or broke, or TLS failed."""


class LookupDelayed(TargetError):
    """The name was not looked up: the organization's share of look-ups is in use. The target is not at fault."""


@dataclass(frozen=True)
class Response:
    """A response. Names in `headers` are in lower case.

    `body_start` has at most `kept_bytes` of the request; `truncated` means that the body was longer.
    """

    status: int
    headers: Mapping[str, str]
    body_start: bytes
    elapsed_s: float
    truncated: bool = False


class TrackedRequest(aiohttp.ClientRequest):
    """Record in the task's `Lookup` that sending begins. aiohttp's tracing costs ten times as much."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        if lookup := lookups.current.get():
            lookup.begin_sending(conn)
        return await super().send(conn)


class HttpClient:
    """Send guarded requests in one event loop.

    Most code calls `post` and `get` of this module, which share one client per loop. `organization` in both is the
    one whose share of name look-ups the request uses (0: no organization). `resolver` finds addresses
    (default: the system's); `tls` verifies certificates (default: the system's authorities); `allowed` are
    networks besides the public ones (default: HTTP_ALLOWED_NETWORKS). `proxy` is the outbound proxy's URL
    (default: OUTBOUND_PROXY_URL; empty: none).
    """

    def __init__(
        self,
        *,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
        allowed: tuple[Network, ...] | None = None,
        dns_ttl_s: float = DNS_TTL_S,
        proxy: str | None = None,
    ) -> None:
        if allowed is None:
            allowed = parse_networks(tuple(settings.HTTP_ALLOWED_NETWORKS))
        self._allowed, self._tls = allowed, tls
        proxy = settings.OUTBOUND_PROXY_URL if proxy is None else proxy
        self._proxy = outbound_proxy.parse(proxy) if proxy else None
        self._resolver = FairResolver(resolver or SystemResolver(), dns_ttl_s)
        # A connection that was opened while private targets were allowed must not serve a request for which they
        # are not.
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._posts: dict[bool, PostExchange] = {}

    async def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        allow_private: bool = False,
        organization: int = 0,
        kept_bytes: int = KEPT_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> Response:
        """Send one POST, once. `timeout_s` covers everything: resolving, connecting, sending and reading.

        `tls` replaces the client's context, for a client certificate; its connections serve no other context.
        Any status is a response, including 3xx. Raises ForbiddenTarget, TargetTimeout, TargetUnreachable,
        LookupDelayed; ValueError for headers that may not be set or a body above MAX_BODY_BYTES.
        """
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"the body is larger than {MAX_BODY_BYTES} bytes")
        return await self._send(
            "POST", url, body, headers, timeout_s, allow_private, organization, kept_bytes, tls
        )

    async def put(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        organization: int = 0,
        kept_bytes: int = KEPT_BYTES,
    ) -> Response:
        """Send one PUT, like `post`."""
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"the body is larger than {MAX_BODY_BYTES} bytes")
        return await self._send("PUT", url, body, headers, timeout_s, False, organization, kept_bytes)

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        allow_private: bool = False,
        organization: int = 0,
        kept_bytes: int = KEPT_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> Response:
        """Send one GET, like `post` without a body."""
        return await self._send("GET", url, None, headers, timeout_s, allow_private, organization, kept_bytes, tls)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
        self._posts.clear()
        await self._resolver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        allow_private: bool,
        organization: int,
        kept_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> Response:
        check_headers(headers)
        target = check_url(url, settings.HTTP_ALLOWED_PORTS)
        _check_literal(target.raw_host or "", self._allowed, allow_private)
        session = self._session(allow_private)
        lookup = Lookup(organization)
        context = lookups.current.set(lookup)
        start = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                if method == "POST" and body is not None and len(body) <= exchange.MAX_BODY_BYTES:
                    status, answered, kept, truncated = await self._posts[allow_private].post(
                        target,
                        headers,
                        body,
                        True if tls is None else tls,
                        lookup.begin_sending,
                        kept_bytes,
                    )
                else:
                    async with session.request(
                        method,
                        target,
                        data=body,
                        headers=headers,
                        allow_redirects=False,
                        ssl=True if tls is None else tls,
                    ) as answer:
                        kept, truncated = await read_start(answer, kept_bytes)
                    status, answered = answer.status, answer.headers
        except TimeoutError:
            if lookup.is_waiting:
                raise LookupDelayed("the name was not looked up in time", sent=False) from None
            raise TargetTimeout(f"no response within {timeout_s:g} s", sent=lookup.sent) from None
        except (aiohttp.ClientError, OSError) as error:
            if refusal := _cause(error, ForbiddenTarget):
                raise refusal from None
            if delayed := _cause(error, lookups.LookupDelayed):
                raise LookupDelayed(str(delayed), sent=False) from None
            raise TargetUnreachable(describe_error(error), sent=lookup.sent) from error
        finally:
            lookups.current.reset(context)
        return Response(
            status,
            {name.lower(): value for name, value in answered.items()},
            kept,
            time.perf_counter() - start,
            truncated,
        )

    def _session(self, allow_private: bool) -> aiohttp.ClientSession:
        if allow_private not in self._sessions:
            check = functools.partial(check_address, allowed=self._allowed, allow_private=allow_private)
            connector = outbound_proxy.TunnelConnector(
                self._proxy,
                resolver=_CheckingResolver(self._resolver, check),
                socket_factory=functools.partial(_checked_socket, check),
                use_dns_cache=False,  # the resolver caches, and lets no name wait for another organization's turn
                limit=CONNECTIONS,
                keepalive_timeout=KEEP_ALIVE_S,
                ssl=self._tls if self._tls is not None else True,
            )
            self._sessions[allow_private] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                headers={name: DEFAULT_HEADERS[name] for name in ("User-Agent", "Accept-Encoding")},
                request_class=TrackedRequest,
            )
            self._posts[allow_private] = PostExchange(connector, DEFAULT_HEADERS, MAX_HEADER_BYTES)
        return self._sessions[allow_private]


@functools.lru_cache(maxsize=4096)
def _check_literal(host: str, allowed: tuple[Network, ...], allow_private: bool) -> None:
    """Reject a forbidden IP address as host. Names are checked when they are resolved."""
    if parse_literal(host) is not None:
        check_address(host, allowed, allow_private=allow_private)


class _CheckingResolver(AbstractResolver):
    """Reject a name if any of its addresses is forbidden: the next connection might use that address."""

    def __init__(self, inner: AbstractResolver, check: Callable[[str], None]) -> None:
        self._inner, self._check = inner, check

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        if not results:
            raise OSError(f"{host} has no address")
        for result in results:
            self._check(result["host"])
        return [ResolveResult({**result, "flags": socket.AI_NUMERICHOST}) for result in results]

    async def close(self) -> None:
        """Do nothing: the inner resolver belongs to the client."""


def _checked_socket(check: Callable[[str], None], address_info: Any) -> socket.socket:
    """Return a socket for an address that is checked again, right before connecting."""
    family, kind, protocol, _, address = address_info
    try:
        check(str(address[0]))
    except ForbiddenTarget as refusal:  # after this type of error, aiohttp tries the next address
        raise PermissionError(errno.EACCES, str(refusal)) from refusal
    return socket.socket(family, kind, protocol)


def _cause(error: BaseException | None, kind: type[E]) -> E | None:
    """Return the error of this type that caused `error`, or None."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error, for the log."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- One client per event loop --------------------------------------------------------------------------------
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, HttpClient] = weakref.WeakKeyDictionary()


def shared() -> HttpClient:
    """Return the client of the running event loop. Call `close()` before the loop ends."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = HttpClient()
    return _clients[loop]


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout_s: float,
    *,
    allow_private: bool = False,
    organization: int = 0,
    tls: ssl.SSLContext | None = None,
) -> Response:
    """Send one POST with the shared client; see `HttpClient.post`."""
    return await shared().post(
        url, body, headers, timeout_s, allow_private=allow_private, organization=organization, tls=tls
    )


async def get(
    url: str,
    headers: Mapping[str, str],
    timeout_s: float,
    *,
    allow_private: bool = False,
    organization: int = 0,
    tls: ssl.SSLContext | None = None,
) -> Response:
    """Send one GET with the shared client; see `HttpClient.get`."""
    return await shared().get(
        url, headers, timeout_s, allow_private=allow_private, organization=organization, tls=tls
    )


async def close() -> None:
    """Close the running loop's client, if it has one."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
        await client.close()
