"""The guarded HTTP client: everything whose URL a tenant may choose is called through it.

    answer = await http_client.post("https://example.com/hook", b"{}", {"X-Kind": "test"}, timeout_s=10)

Every address that a name resolves to is checked, the connection goes to one of those very addresses, and that one
is checked again as its socket is made: a name that answers differently the second time gains nothing. No redirect
is followed, no proxy or credential is taken from the environment, no cookie is kept, nothing is decompressed.
Connections are reused, within one event loop and one policy.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import re
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings

from dispatch.core.http_targets import Network, TargetRefused, check_address, check_url, literal, parse_networks

__all__ = ["HttpClient", "Response", "TargetError", "TargetRefused", "TargetTimeout", "TargetUnreachable"]

KEPT_BYTES = 4096
READ_BYTES = 262_144
LONGEST_HEADER = 8190
LONGEST_BODY = 16 * 1024 * 1024
KEEP_ALIVE_S = 15.0
DNS_TTL_S = 5.0
CONNECTIONS = 2000
RESOLVING_THREADS = 16
USER_AGENT = "Dispatch/1"
# Ours to say, or about the one connection; a tenant who could set them could split or smuggle requests.
FORBIDDEN_HEADERS = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer",
        "expect", "proxy-connection", "proxy-authorization", "accept-encoding",
    }
)  # fmt: skip


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


class TargetError(Exception):
    """The target gave no answer. `sent`: whether the request may have reached it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class TargetTimeout(TargetError):
    """Not done within the total time."""


class TargetUnreachable(TargetError):
    """The name does not resolve, nobody listens, TLS failed, or the connection broke."""


@dataclass(frozen=True)
class Response:
    """`headers` have lower-case names. `body_start` is at most KEPT_BYTES; `truncated`: there was more."""

    status: int
    headers: Mapping[str, str]
    body_start: bytes
    elapsed_s: float
    truncated: bool = False


@dataclass
class _Progress:
    """How far one request has come: until its headers leave, the target cannot have seen it."""

    sent: bool = field(default=False)


class HttpClient:
    """One client of one event loop; most code calls `post` and `get` of this module, which share one per loop.

    `resolver` finds addresses (default: the system's); `tls` verifies certificates (default: the system's
    authorities); `allowed` are networks beside the public ones (default: HTTP_ALLOWED_NETWORKS)."""

    def __init__(
        self,
        *,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
        allowed: tuple[Network, ...] | None = None,
        dns_ttl_s: float = DNS_TTL_S,
    ) -> None:
        if allowed is None:
            allowed = parse_networks(tuple(settings.HTTP_ALLOWED_NETWORKS))
        self._allowed, self._tls, self._dns_ttl_s = allowed, tls, dns_ttl_s
        self._resolver = resolver or _SystemResolver()
        # A connection made where private targets are allowed must not serve a request for which they are not.
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, *, allow_private: bool = False
    ) -> Response:
        """Sends one POST, once. `timeout_s` bounds everything: looking up, connecting, sending and reading.

        Any status is an answer, also 3xx. Raises TargetRefused, TargetTimeout, TargetUnreachable; ValueError for
        headers that may not be set or a body above LONGEST_BODY."""
        if len(body) > LONGEST_BODY:
            raise ValueError(f"the body is larger than {LONGEST_BODY} bytes")
        return await self._call("POST", url, body, headers, timeout_s, allow_private)

    async def get(
        self, url: str, headers: Mapping[str, str], timeout_s: float, *, allow_private: bool = False
    ) -> Response:
        """As `post`, without a body."""
        return await self._call("GET", url, None, headers, timeout_s, allow_private)

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
        await self._resolver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _call(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        allow_private: bool,
    ) -> Response:
        check_headers(headers)
        target = check_url(url, settings.HTTP_ALLOWED_PORTS)
        _check_literal(target.raw_host or "", self._allowed, allow_private)
        session = self._session(allow_private)
        progress = _Progress()
        start = time.perf_counter()
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.request(
                    method, target, data=body, headers=headers, allow_redirects=False, trace_request_ctx=progress
                ) as answer,
            ):
                kept, truncated = await _read(answer)
        except TimeoutError:
            raise TargetTimeout(f"no answer within {timeout_s:g} s", sent=progress.sent) from None
        except (aiohttp.ClientError, OSError) as error:
            if refusal := _refusal_behind(error):
                raise refusal from None
            raise TargetUnreachable(_words(error), sent=progress.sent) from error
        return Response(
            answer.status,
            {name.lower(): value for name, value in answer.headers.items()},
            kept,
            time.perf_counter() - start,
            truncated,
        )

    def _session(self, allow_private: bool) -> aiohttp.ClientSession:
        if allow_private not in self._sessions:
            check = functools.partial(check_address, allowed=self._allowed, allow_private=allow_private)
            connector = aiohttp.TCPConnector(
                resolver=_CheckingResolver(self._resolver, check),
                socket_factory=functools.partial(_checked_socket, check),
                use_dns_cache=self._dns_ttl_s > 0,
                ttl_dns_cache=self._dns_ttl_s,  # type: ignore[arg-type]  # seconds, whole or not
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
                max_line_size=LONGEST_HEADER,
                max_field_size=LONGEST_HEADER,
                headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
                trace_configs=[_tracing()],
            )
        return self._sessions[allow_private]


@functools.lru_cache(maxsize=4096)
def _check_literal(host: str, allowed: tuple[Network, ...], allow_private: bool) -> None:
    """Refuses a host that is an address and may not be called; names are checked when they are resolved."""
    if literal(host) is not None:
        check_address(host, allowed, allow_private=allow_private)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError when a header is not the caller's to set, or could not be sent as it is."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header")
        if name.lower() in FORBIDDEN_HEADERS:
            raise ValueError(f"the header {name} cannot be set")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the header {name} has a character that cannot be sent")


async def _read(answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """The first bytes of the body and whether there were more. What lies beyond READ_BYTES is not read: the
    connection is closed instead of reused."""
    kept, read = bytearray(), 0
    async for part in answer.content.iter_any():
        read += len(part)
        kept += part[: KEPT_BYTES - len(kept)]
        if read > READ_BYTES:
            answer.close()
            break
    return bytes(kept), read > KEPT_BYTES


class _SystemResolver(AbstractResolver):
    """The system's resolver, in threads of its own: slow names of one tenant hold up nothing but other names."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVING_THREADS, thread_name_prefix="resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        look_up = functools.partial(socket.getaddrinfo, host, port, family=family, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(hostname=host, host=str(address[0]), port=port, family=kind, proto=protocol, flags=0)
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _CheckingResolver(AbstractResolver):
    """Refuses a name when any of its addresses is refused: the next connection might take that one."""

    def __init__(self, inner: AbstractResolver, check: Callable[[str], None]) -> None:
        self._inner, self._check = inner, check

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if not found:
            raise OSError(f"{host} has no address")
        for result in found:
            self._check(result["host"])
        return [ResolveResult({**result, "flags": socket.AI_NUMERICHOST}) for result in found]

    async def close(self) -> None:
        """Nothing: the inner one belongs to the client."""


def _checked_socket(check: Callable[[str], None], address_info: Any) -> socket.socket:
    """A socket for an address that is checked once more, now that it is about to be connected to."""
    family, kind, protocol, _, address = address_info
    try:
        check(str(address[0]))
    except TargetRefused as refusal:  # the one kind of error that trying several addresses lets through
        raise PermissionError(errno.EACCES, str(refusal)) from refusal
    return socket.socket(family, kind, protocol)


def _tracing() -> aiohttp.TraceConfig:
    async def headers_sent(session: object, context: Any, params: object) -> None:
        if isinstance(context.trace_request_ctx, _Progress):
            context.trace_request_ctx.sent = True

    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(headers_sent)
    return tracing


def _refusal_behind(error: BaseException | None) -> TargetRefused | None:
    while error is not None and not isinstance(error, TargetRefused):
        error = error.__cause__
    return error


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- One client per event loop --------------------------------------------------------------------------------
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, HttpClient] = weakref.WeakKeyDictionary()


def shared() -> HttpClient:
    """The client of the running event loop; `close()` before the loop ends."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = HttpClient()
    return _clients[loop]


async def post(
    url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, *, allow_private: bool = False
) -> Response:
    """See `HttpClient.post`."""
    return await shared().post(url, body, headers, timeout_s, allow_private=allow_private)


async def get(url: str, headers: Mapping[str, str], timeout_s: float, *, allow_private: bool = False) -> Response:
    """See `HttpClient.get`."""
    return await shared().get(url, headers, timeout_s, allow_private=allow_private)


async def close() -> None:
    """Closes the running loop's client, if it has one."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
        await client.close()
