"""Webhook server for the simulator's tests: it records what it receives."""

from __future__ import annotations

import http.server
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from twilio.request_validator import RequestValidator

from tests.phones import AUTH_TOKEN
from tests.support.waiting import PATIENCE, wait_until


@dataclass(frozen=True)
class Received:
    """One received request. `signed`: whether the official validator accepts its signature."""

    method: str
    path: str
    params: dict[str, str]
    signed: bool
    at: float


class OurServer:
    """Respond with the TwiML, error status or silence that a test asks for."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._documents: dict[str, tuple[bytes, str]] = {}
        self._troubles: dict[str, list[Any]] = {}
        self._closing = threading.Event()
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                ours._take(self, dict(parse_qsl(body, keep_blank_values=True)))

            def do_GET(self) -> None:
                ours._take(self, {})

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1024  # with the default of 5, a burst would wait for seconds

        self._server = Server(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def says(self, path: str, inside: str, content_type: str = "text/xml") -> str:
        """Answer that path with a Response of these verbs; its URL."""
        self._documents[path] = (f"<Response>{inside}</Response>".encode(), content_type)
        return self.base + path

    def serves(self, path: str, content: bytes, content_type: str) -> str:
        """Answer that path with this file; its URL."""
        self._documents[path] = (content, content_type)
        return self.base + path

    def breaks(self, path: str, *troubles: int | float) -> None:
        """Break the next requests to that path.

        An int is a status; a float delays the response by that many seconds.
        """
        self._troubles[path] = list(troubles)

    def to(self, path: str) -> list[Received]:
        return [request for request in list(self.received) if request.path == path]

    def waits_for(self, path: str, count: int = 1, within: float = PATIENCE) -> list[Received]:
        wait_until(
            lambda: len(self.to(path)) >= count, message=lambda: f"{path}: only {self.to(path)}", timeout=within
        )
        return self.to(path)

    def statuses(self, path: str = "/status") -> list[str]:
        return [request.params["CallStatus"] for request in self.to(path)]

    def _take(self, handler: Any, form: dict[str, str]) -> None:
        parts = urlsplit(handler.path)
        signed = RequestValidator(AUTH_TOKEN).validate(
            self.base + handler.path, form, handler.headers.get("X-Twilio-Signature", "")
        )
        params = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **form}
        self.received.append(Received(handler.command, parts.path, params, signed, time.monotonic()))
        troubles = self._troubles.get(parts.path, [])
        trouble = troubles.pop(0) if troubles else None
        if isinstance(trouble, float):
            self._closing.wait(trouble)
        body, kind = self._documents.get(parts.path, (b"", "text/plain"))
        status = trouble if isinstance(trouble, int) else 200
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", kind)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:
            handler.close_connection = True
