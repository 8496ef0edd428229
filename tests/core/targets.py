"""Provide real HTTP targets on loopback, in the test's event loop, and names that resolve as a test defines."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp.abc import AbstractResolver, ResolveResult

Answer = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Target:
    """A server at `address` that counts connections and stores requests."""

    address: str
    port: int
    connections: int = 0
    requests: list[Request] = field(default_factory=list)

    def url(self, host: str | None = None, path: str = "/hook") -> str:
        return f"http://{host or self.address}:{self.port}{path}"


def raw(answer: bytes) -> Answer:
    """Answer with these bytes."""

    async def write(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return write


@asynccontextmanager
async def target(
    answer: Answer | bytes = OK, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Target]:
    """Run a bare HTTP/1.1 server that does exactly what `answer` says, including mistakes."""
    respond = raw(answer) if isinstance(answer, bytes) else answer
    found = Target(address, port)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        try:
            while request := await _read(reader):
                found.requests.append(request)
                await respond(request, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, address, port, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(line, headers, body)


class Names(AbstractResolver):
    """Resolve from a table. A name with several answers gives one after another, and repeats the last."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.asked.append(host)
        if host not in self._answers:
            raise OSError(socket.EAI_NONAME, "Name or service not known")
        given = self._answers[host]
        addresses = given.pop(0) if len(given) > 1 else given[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=0,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Do nothing: there are no resources."""
