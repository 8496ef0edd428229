"""Play chat services on loopback: each answers as its documentation says, or as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from dispatch.core.http.client import HttpClient
from notifications.channels import guarded_requests

# The services whose addresses are fixed. Their requests come to `/<host>/…` of the local server.
HOSTS = ("hooks.slack.com", "chat.googleapis.com", "api.telegram.org", "prod-7.westus.logic.azure.com")
SLACK_URL = "https://hooks.slack.com/services/T0001/B0001/abcdefghijklmnopqrstuvwx"
USUAL: dict[str, tuple[int, bytes]] = {
    "slack": (200, b"ok"),
    "teams": (202, b""),
    "google_chat": (200, b'{"name": "spaces/AAAA/messages/1"}'),
    "telegram": (200, b'{"ok": true, "result": {"message_id": 7}}'),
    "matrix": (200, b'{"event_id": "$1"}'),
    "ntfy": (200, b'{"id": "1", "event": "message"}'),
    "webhook": (204, b""),
}


@dataclass
class Received:
    """One request as a service got it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answers:
    """What the services answer next, by the first part of the path; `hanging` ones wait for `go_on`."""

    port: int = 0
    requests: list[Received] = field(default_factory=list)
    answers: dict[str, tuple[int, bytes, dict[str, str]]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, service: str, status: int, body: bytes = b"", **headers: str) -> None:
        self.answers[service] = status, body, {name.replace("_", "-"): text for name, text in headers.items()}

    def entered(self, kind: str) -> dict[str, str]:
        """Return what a person enters for this kind."""
        return {
            "slack": {"url": SLACK_URL},
            "teams": {
                "url": "https://prod-7.westus.logic.azure.com:443/workflows/abc123/triggers/manual/paths/invoke"
                "?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=s1g-n_ature"
            },
            "google_chat": {"url": "https://chat.googleapis.com/v1/spaces/AAAA/messages?key=kEy&token=t0ken%3D"},
            "telegram": {"token": "123456789:AAE-secret_token", "chat": "-100200300"},
            "matrix": {"server": self.base, "token": "syt_secret", "room": "!room:example.org"},
            "ntfy": {"server": self.base, "topic": "secret-topic", "token": "tk_secret"},
            "webhook": {"url": f"{self.base}/webhook/hook?code=hidden", "token": "bearer-secret"},
        }[kind]


def service_of(request: Received) -> str:
    """Return the kind of the service that a request is for."""
    path = unquote(request.path)
    by_host = dict(zip(HOSTS, ("slack", "google_chat", "telegram", "teams"), strict=True))
    first = path.split("/")[1]
    if path.startswith("/_matrix"):
        return "matrix"
    return by_host.get(first) or ("webhook" if first == "webhook" else "ntfy")


@contextmanager
def chat_services(patch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """Run the services until the block ends."""
    state = Answers()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Received(self.command, self.path, dict(self.headers), body)
            service = service_of(request)
            state.requests.append(request)
            state.arrived.release()
            if service in state.hanging:
                state.go_on.wait(60)
            usual = (*USUAL[service], {})
            status, answer, headers = state.answers.get(service, usual)
            try:
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                self.close_connection = True  # the caller has gone

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._handle
            raise AttributeError(name)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    class LocalClient(HttpClient):
        """Send what is for a fixed host to the local server. All checks stay in force."""

        async def _send(self, method: str, url: str, *args: Any, **options: Any) -> Any:
            parts = urlsplit(url)
            if parts.hostname in HOSTS:
                assert parts.scheme == "https"
                url = f"{state.base}/{parts.hostname}{parts.path}?{parts.query}"
            return await super()._send(method, url, *args, **options)

    patch.setattr(guarded_requests, "HttpClient", LocalClient)
    try:
        yield state
    finally:
        state.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
