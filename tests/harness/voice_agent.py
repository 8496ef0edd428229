"""The documented voice agent as a real process, and one that a test scripts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from twilio.request_validator import RequestValidator
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.phones import AUTH_TOKEN
from tests.support.processes import ROOT, free_port
from tests.support.waiting import PATIENCE, wait_until


@contextmanager
def documented_agent(app_url: str, key: str, token: str = AUTH_TOKEN) -> Iterator[str]:
    """Run `docs/examples/voice_agent.py` as it stands; yield its address, without a path."""
    port = free_port()
    address = f"ws://127.0.0.1:{port}"
    given = {
        "PORT": str(port), "PUBLIC_URL": address, "TWILIO_AUTH_TOKEN": token, "DISPATCH_URL": app_url,
        "DISPATCH_KEY": key,
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "docs/examples/voice_agent.py")]
    process = subprocess.Popen(command, env={**os.environ, **given})
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, "the voice agent has stopped"
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Talk:
    """One conversation, as the agent of a test sees it."""

    def __init__(self, server: ServerConnection) -> None:
        self._server = server
        self.heard: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        self._server.send(json.dumps(message))

    def hear(self, kind: str) -> dict[str, Any]:
        """Return the next message of this kind. Others are kept in `heard`."""
        while True:
            message: dict[str, Any] = json.loads(self._server.recv(PATIENCE))
            self.heard.append(message)
            if kind in (message.get("event"), message.get("type")):
                return message

    def hear_first(self) -> dict[str, Any]:
        """Return the first message."""
        self.heard.append(json.loads(self._server.recv(PATIENCE)))
        return self.heard[-1]

    @property
    def is_stream(self) -> bool:
        """Whether the conversation is by audio."""
        return "event" in self.heard[0]

    def hear_until_closed(self) -> None:
        try:
            while True:
                self.heard.append(json.loads(self._server.recv(PATIENCE)))
        except ConnectionClosed:
            return

    def kinds(self) -> list[str]:
        return [str(message.get("event") or message.get("type")) for message in self.heard]


class ScriptedAgent:
    """A WebSocket server in a thread that talks as the test says, and closes the connection then.

    `refuses`: the status with which it refuses handshakes. `signed`: of each handshake, whether the official
    validator accepts its signature.
    """

    def __init__(self, talk: Callable[[Talk], None], refuses: int = 0) -> None:
        self.talks: list[Talk] = []
        self.signed: list[bool] = []
        self.errors: list[BaseException] = []

        def check(connection: ServerConnection, request: Any) -> Any:
            signature = request.headers.get("X-Twilio-Signature", "")
            self.signed.append(RequestValidator(AUTH_TOKEN).validate(self.url + request.path, {}, signature))
            return connection.respond(HTTPStatus(refuses), "no") if refuses else None

        def run(connection: ServerConnection) -> None:
            self.talks.append(Talk(connection))
            try:
                talk(self.talks[-1])
            except ConnectionClosed:
                return
            except BaseException as error:
                self.errors.append(error)
                raise

        self._server = serve(run, "127.0.0.1", 0, process_request=check)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> ScriptedAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        assert self.errors == []
