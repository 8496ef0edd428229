"""An HTTP server that answers each request as a test says, down to single bytes and resets."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Answer = Callable[["Peer"], None]


@dataclass
class Request:
    """A request as it arrived. Names of headers are in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Peer:
    """A request and the connection over which it came."""

    socket: socket.socket
    stream: Any
    server: RawServer
    request: Request

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, status: int, body: bytes, *headers: str) -> None:
        """Send a complete response."""
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers, "", ""]
        self.send("\r\n".join(lines).encode() + body)

    def close(self) -> None:
        """Close the connection in order."""
        self.socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close the connection with a reset."""
        self.stream.close()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def hang(self) -> None:
        """Wait until the server is closed."""
        self.server.closed.wait()


@dataclass
class RawServer:
    """A server that calls `answers` in turn, and then the last one again; `tls` wraps its connections."""

    answers: list[Answer]
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError, EOFError, ValueError):  # a stream that the test closed
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            stream = connection.makefile("rb")
            while True:
                request = _read(stream, number)
                if request.line.startswith("HEAD"):  # a probe, which another thread sends
                    Peer(connection, stream, self, request).answer(200, b"")
                    continue
                with self._lock:
                    self.requests.append(request)
                    answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
                answer(Peer(connection, stream, self, request))


def _read(stream: Any, number: int) -> Request:
    line = stream.readline().decode().strip()
    if not line:
        raise EOFError
    headers = {}
    while text := stream.readline().decode().strip():
        name, _, value = text.partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", "0")))
    return Request(line, headers, body, number)
