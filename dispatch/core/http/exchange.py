"""Send one POST on a connection of aiohttp's connector, and read its response.

The connector resolves, connects, reuses and limits connections, and its parser reads responses. The request is
written here: building aiohttp's request and response objects costs more than everything else about a request.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

# A longer body is sent by aiohttp, which waits while the receiver does not read.
MAX_BODY_BYTES = 65_536
READ_BYTES = 262_144
_MAX_TARGETS = 4096
# The client sets these headers, or they concern the connection. By setting them, a tenant could smuggle requests.
FORBIDDEN_HEADERS = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer",
        "expect", "proxy-connection", "proxy-authorization", "accept-encoding",
    }
)  # fmt: skip
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


class PostExchange:
    """Send POSTs through `connector`, with `defaults` for the headers that a request does not set."""

    def __init__(
        self, connector: aiohttp.TCPConnector, defaults: Mapping[str, str], max_header_bytes: int
    ) -> None:
        self._connector, self._max_header_bytes = connector, max_header_bytes
        self._defaults = {name.lower(): f"{name}: {value}\r\n" for name, value in defaults.items()}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)
        # Of these, the connector only reads where to connect.
        self._targets: dict[URL, tuple[aiohttp.ClientRequest, str]] = {}

    async def post(
        self,
        url: URL,
        headers: Mapping[str, str],
        body: bytes,
        tls: ssl.SSLContext | bool,
        on_send: Callable[[Connection], None],
        kept_bytes: int,
    ) -> tuple[int, Mapping[str, str], bytes, bool]:
        """Return status, headers, the start of the body, and whether it is longer.

        Nothing beyond READ_BYTES is read: the connection is closed instead of reused.
        `on_send` is called when the request is about to be written. Raises aiohttp.ClientError and OSError.
        """
        target, first_lines = self._target(url, tls)
        content = self._head(first_lines, headers, len(body)) + body
        connection = await self._connector.connect(target, [], self._timeout)
        is_reusable = False
        try:
            protocol = connection.protocol
            assert protocol is not None
            protocol.set_response_params(
                read_until_eof=True,
                auto_decompress=False,
                max_line_size=self._max_header_bytes,
                max_field_size=self._max_header_bytes,
            )
            transport = protocol.transport
            if transport is None or transport.is_closing():
                raise aiohttp.ClientConnectionResetError("the connection was closed before the request was sent")
            on_send(connection)
            transport.write(content)
            message, payload = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, payload = await protocol.read()
            kept, read = bytearray(), 0
            while not payload.at_eof() and read <= READ_BYTES:
                part = await payload.readany()
                read += len(part)
                kept += part[: kept_bytes - len(kept)]
            is_reusable = payload.at_eof() and not protocol.upgraded
            return message.code, message.headers, bytes(kept), read > kept_bytes
        except HttpProcessingError as error:
            request = aiohttp.RequestInfo(url, "POST", target.headers, url)  # type: ignore[arg-type]
            raise aiohttp.ClientResponseError(
                request, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        finally:
            if is_reusable:
                connection.release()
            else:
                connection.close()

    def _target(self, url: URL, tls: ssl.SSLContext | bool) -> tuple[aiohttp.ClientRequest, str]:
        """Return where to connect to, and the request line with the Host header."""
        if tls is True and url in self._targets:
            return self._targets[url]
        request = aiohttp.ClientRequest("POST", url, ssl=tls, loop=asyncio.get_running_loop())
        made = request, f"POST {url.raw_path_qs} HTTP/1.1\r\nHost: {request.headers['Host']}\r\n"
        if tls is True:  # contexts with client certificates are not kept alive here
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            self._targets[url] = made
        return made

    def _head(self, first_lines: str, headers: Mapping[str, str], length: int) -> bytes:
        """Return everything before the body. The caller has checked the headers."""
        given = {name.lower() for name in headers}
        lines = [first_lines]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        lines += [line for name, line in self._defaults.items() if name not in given]
        lines.append(f"Content-Length: {length}\r\n\r\n")
        return "".join(lines).encode("ascii")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ValueError if a header is reserved for the client or contains characters that cannot be sent."""
    for name, value in headers.items():
        _check_header_name(name)
        if not ((value.isascii() and value.isprintable()) or _HEADER_VALUE.fullmatch(value)):
            raise ValueError(f"the header {name} contains a character that cannot be sent")


@functools.lru_cache(maxsize=4096)
def _check_header_name(name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid header name")
    if name.lower() in FORBIDDEN_HEADERS:
        raise ValueError(f"the header {name} cannot be set")


async def read_start(answer: aiohttp.ClientResponse, kept_bytes: int) -> tuple[bytes, bool]:
    """Return the first `kept_bytes` of the body and whether there were more.

    Nothing beyond READ_BYTES is read: the connection is closed instead of reused.
    """
    kept, read = bytearray(), 0
    async for part in answer.content.iter_any():
        read += len(part)
        kept += part[: kept_bytes - len(kept)]
        if read > READ_BYTES:
            answer.close()
            break
    return bytes(kept), read > kept_bytes
