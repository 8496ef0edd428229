"""Connect to targets through an HTTP proxy, with the guard of the HTTP client still in force.

The proxy gets CONNECT with an address that was resolved and checked here, for http and https alike. It resolves no
name, so it cannot be led elsewhere than to that address, and TLS is between this process and the target.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
from django.core.exceptions import ImproperlyConfigured

MAX_RESPONSE_BYTES = 8192


@dataclass(frozen=True)
class Proxy:
    """Where the proxy listens, and the value of Proxy-Authorization (empty: none)."""

    host: str
    port: int
    authorization: str = ""


class ProxyRefused(OSError):
    """The proxy did not open a tunnel. Nothing was sent to the target."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ECONNREFUSED, message)


def parse(url: str) -> Proxy:
    """Return the proxy of a URL such as http://user:password@proxy.example.com:3128.

    Raises ImproperlyConfigured.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme != "http" or not parts.hostname or not port or parts.path not in ("", "/") or parts.query:
        raise ImproperlyConfigured(
            "OUTBOUND_PROXY_URL must look like http://user:password@proxy.example.com:3128."
        )
    given = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    authorization = f"Basic {base64.b64encode(given.encode()).decode()}" if parts.username else ""
    return Proxy(parts.hostname, port, authorization)


class TunnelConnector(aiohttp.TCPConnector):
    """A connector whose connections go through `proxy`, if there is one.

    The addresses come from the connector's resolver, which checks them, and are checked again by `socket_factory`,
    whose socket is not used.
    """

    def __init__(self, proxy: Proxy | None, **options: Any) -> None:
        super().__init__(**options)
        self._tunnel_proxy = proxy

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: Any,
        req: Any,
        timeout: Any,
        client_error: Any = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        if self._tunnel_proxy is None:
            return await super()._wrap_create_connection(
                *args, addr_infos=addr_infos, req=req, timeout=timeout, client_error=client_error, **kwargs
            )
        tunnel: socket.socket | None = None
        try:
            assert self._socket_factory is not None
            self._socket_factory(addr_infos[0]).close()
            tunnel = await _open(self._tunnel_proxy, *addr_infos[0][4][:2])
            created = await self._loop.create_connection(*args, **kwargs, sock=tunnel)
            tunnel = None
            return created
        except OSError as error:  # also TLS and certificate errors
            raise client_error(req.connection_key, error) from error
        finally:
            if tunnel is not None:
                tunnel.close()


async def _open(proxy: Proxy, address: str, port: int) -> socket.socket:
    """Return a socket that is connected to the address through the proxy. Raises OSError."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM)
    if not addresses:
        raise ProxyRefused("the outbound proxy has no address")
    family, kind, protocol, _, where = addresses[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        await loop.sock_connect(connection, where)
        target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        await loop.sock_sendall(connection, ("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
        answer = await _head(loop, connection)
        status = answer.split(b"\r\n", 1)[0].split(b" ")
        if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or status[1] != b"200":
            code = status[1].decode("ascii", "replace")[:3] if len(status) > 1 else "nothing"
            raise ProxyRefused(f"the outbound proxy opened no tunnel (it answered {code})")
    except BaseException:
        connection.close()
        raise
    return connection


async def _head(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
    """Return the head of the proxy's answer. Byte by byte: what follows belongs to the target."""
    read = bytearray()
    while not read.endswith(b"\r\n\r\n"):
        part = await loop.sock_recv(connection, 1)
        if not part or len(read) >= MAX_RESPONSE_BYTES:
            raise ProxyRefused("the outbound proxy gave no complete answer")
        read += part
    return bytes(read)
