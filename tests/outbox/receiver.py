"""Run a real HTTP server that receives the outbox's requests, and records their order and overlaps.

It runs in a thread with a separate event loop. By default it responds with 200 at once; a test can change that
by message: `receiver.answer("b", 500, times=2)`, `receiver.hold("a")` … `receiver.let_go("a")`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.waiting import PATIENCE, wait_until


@dataclass
class Visit:
    """One request: `name` is the payload's "name", `group` the header's value."""

    name: str
    group: str
    headers: dict[str, str]
    body: bytes
    began: float
    ended: float | None = None
    path: str = "/"
    client: str = ""
    peer: object = None
    status: int | None = None


@dataclass
class Answer:
    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    times: int = 10**9


class Receiver:
    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.host, self.tls = host, tls
        self.visits: list[Visit] = []
        self.default = Answer()
        self.on_visit: Callable[[Visit], None] | None = None
        self._answers: dict[str, list[Answer]] = defaultdict(list)
        self._held: dict[str, asyncio.Event] = {}
        self._gate: asyncio.Event | None = None
        self._free_visits = 0
        self._open = 0
        self.most_open = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}/hook"

    # --- Responses
    def answer(
        self,
        name: str,
        status: int = 200,
        body: str = "",
        *,
        times: int = 10**9,
        after_s: float = 0.0,
        **headers: str,
    ) -> None:
        """Set the response to the message called `name`, for the next `times` times."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self._answers[name].append(Answer(status, body, named, after_s, times))

    def hold(self, name: str) -> None:
        """Hold back the response to the message called `name`."""
        self._held[name] = asyncio.Event()

    def let_go(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self._held.pop(name).set)

    def hold_all(self, after: int = 0) -> None:
        """Hold back all responses, after this many more."""
        self._free_visits = len(self.visits) + after
        self._gate = asyncio.Event()

    def let_all_go(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            self._loop.call_soon_threadsafe(gate.set)

    def heal(self) -> None:
        """Reset all special responses."""
        self._answers.clear()
        self.default = Answer()

    # --- Requests received
    @property
    def names(self) -> list[str]:
        """Return the names of all visits, in order of arrival."""
        return [visit.name for visit in list(self.visits)]

    def of(self, group: str) -> list[str]:
        return [visit.name for visit in list(self.visits) if visit.group == group]

    def got(self, *names: str, timeout: float = PATIENCE) -> None:
        """Wait until exactly these have arrived, in this order."""
        wait_until(
            lambda: self.names == list(names),
            message=lambda: f"came: {self.names}, wanted {list(names)}",
            timeout=timeout,
        )

    def count(self, number: int, timeout: float = PATIENCE) -> None:
        wait_until(
            lambda: len(self.visits) >= number,
            message=lambda: f"{len(self.visits)} came, wanted {number}",
            timeout=timeout,
        )

    def overlaps(self) -> list[tuple[str, str]]:
        """Return pairs of the same group of which one began before the other had ended."""
        found, last = [], {}
        for visit in sorted(self.visits, key=lambda v: v.began):
            before = last.get(visit.group)
            if before is not None and (before.ended is None or before.ended > visit.began):
                found.append((before.name, visit.name))
            last[visit.group] = visit
        return found

    def close(self) -> None:
        self.let_all_go()
        for event in self._held.values():
            self._loop.call_soon_threadsafe(event.set)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=PATIENCE)

    # --- The server
    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_route("POST", "/{path:.*}", self._take)
        runner = web.AppRunner(app, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, self.host, 0, backlog=1024, ssl_context=self.tls)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        visit = Visit(
            name=_name(body),
            group=request.headers.get("Dispatch-Group", ""),
            headers={key.lower(): value for key, value in request.headers.items()},
            body=body,
            began=time.monotonic(),
            path=request.path,
            client=_client(request),
            peer=request.transport and request.transport.get_extra_info("peername"),
        )
        self.visits.append(visit)
        place = len(self.visits)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        try:
            if self.on_visit:
                self.on_visit(visit)
            answer = self._answer(visit.name)
            if held := self._held.get(visit.name):
                await held.wait()
            if (gate := self._gate) and place > self._free_visits:
                await gate.wait()
            if answer.after_s:
                await asyncio.sleep(answer.after_s)
            visit.status = answer.status
            return web.Response(status=answer.status, text=answer.body, headers=answer.headers)
        finally:
            self._open -= 1
            visit.ended = time.monotonic()

    def _answer(self, name: str) -> Answer:
        waiting = self._answers.get(name, [])
        for answer in waiting:
            if answer.times > 0:
                answer.times -= 1
                return answer
        return self.default


def _client(request: web.Request) -> str:
    """Return the common name of the client's certificate, or ""."""
    given = request.get_extra_info("peercert") or {}
    return str({key: value for ((key, value),) in given.get("subject", ())}.get("commonName", ""))


def _name(body: bytes) -> str:
    try:
        said: Any = json.loads(body)
        return str(said.get("name", said.get("type", "")))
    except (ValueError, AttributeError):
        return ""
