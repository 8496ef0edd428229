"""Execute Connect on an answered call: open a WebSocket to a voice agent, and let it talk to the person.

`media_stream` and `conversation_relay` speak the provider's two protocols over it. The document continues when the
server closes the WebSocket. If the person hangs up, the WebSocket is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import aiohttp

from .callbacks import common_params
from .calls import Over
from .twiml import Verb

if TYPE_CHECKING:
    from .voice import Next, Voice

# Simulated seconds after which the provider gives up a handshake that nobody answers.
HANDSHAKE_S = 10.0
TRANSPORT_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)


class AgentSession:
    """One WebSocket to a voice agent, during one Connect. The subclasses speak the protocols."""

    def __init__(self, voice: Voice, noun: Verb) -> None:
        self.voice, self.noun = voice, noun
        self.world, self.call = voice.world, voice.call
        self.parameters = {p.attributes.get("name", ""): p.attributes.get("value", "") for p in noun.inside}
        self.error = ""
        self.is_open = False
        self._incoming: deque[dict[str, Any] | None] = deque()
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._last_report: asyncio.Task[None] | None = None

    # --- what a protocol does

    def begin(self) -> None:
        """Send the first messages."""

    def receive(self, message: dict[str, Any]) -> None:
        """Process a message of the agent."""

    def pressed(self, key: str) -> None:
        """Process a key that the person pressed."""

    def spoken(self, text: str) -> None:
        """Process what the person said."""

    def end(self) -> None:
        """Send the last messages."""

    async def report(self, event: str) -> None:
        """Report to the application that the connection has started, stopped or failed."""

    def result(self) -> dict[str, str]:
        """Return the parameters for the `action` of the Connect."""
        return {}

    # --- the connection

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, in order, if the WebSocket is open."""
        if self.is_open:
            self._outgoing.put_nowait(json.dumps(message))

    def tell(self, event: str) -> None:
        """Report an event after those before it."""
        before = self._last_report

        async def report() -> None:
            if before is not None:
                await before
            await self.report(event)

        self._last_report = self.world.spawn(report())

    async def reported(self) -> None:
        """Return when all events have been reported."""
        if self._last_report is not None:
            await self._last_report

    def complain(self, text: str) -> None:
        """Record a mistake of the agent."""
        self.world.complain("agent", text, self.call)

    async def run(self) -> None:
        """Talk until the agent closes the WebSocket. Raises Over or Redirected if the call ends or changes."""
        url = self.noun.attributes["url"]
        token = self.world.accounts[self.call.account_sid].config.auth_token
        opening = self.world.spawn(self._open(token, url))
        opening.add_done_callback(lambda _: self.call.signal("fetched"))
        try:
            while not opening.done():
                self.voice.handle(await self.call.wait(None))
        except BaseException:
            opening.cancel()
            raise
        socket = opening.result()
        if socket is None:
            self.call.problems.append(f"31920: {url}: {self.error}")
            self.call.note(f"no voice agent at {url}: {self.error}")
            self.tell("error")
            return
        self.call.note(f"talks to the voice agent at {url}")
        self.is_open = self.call.asking = True
        workers = [self.world.spawn(work(socket)) for work in (self._read, self._write)]
        try:
            self.tell("started")
            self.begin()
            await self._talk()
        finally:
            self.call.asking = False
            self.end()
            self.is_open = False
            self.tell("stopped")
            self.world.spawn(self._close(socket, workers))
            self.call.note("the voice agent has left")

    async def _open(self, token: str, url: str) -> aiohttp.ClientWebSocketResponse | None:
        limit = max(self.world.webhooks.floor, self.world.clock.real(HANDSHAKE_S))
        try:
            return await asyncio.wait_for(self.world.webhooks.open_socket(token, url), limit)
        except TRANSPORT_ERRORS as error:
            status = getattr(error, "status", None)
            self.error = f"answered {status}" if status else type(error).__name__
            return None

    async def _talk(self) -> None:
        while True:
            signal = await self.call.wait(None)
            if key := self.voice.handle(signal, listening=True):
                self.pressed(key)
            elif signal is not None and signal.kind == "speech":
                self.call.note(f"the person says: {signal.text}")
                self.spoken(signal.text)
            while self._incoming:
                message = self._incoming.popleft()
                if message is None:
                    return
                self.receive(message)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for frame in socket:
                try:
                    message = json.loads(frame.data)
                except (TypeError, ValueError):
                    message = None
                if isinstance(message, dict):
                    self._incoming.append(message)
                    self.call.signal("agent")
                else:
                    self.complain(f"a message that is not a JSON object: {str(frame.data)[:100]!r}")
        finally:
            self._incoming.append(None)
            self.call.signal("agent")

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            text = await self._outgoing.get()
            try:
                await socket.send_str(text)
            except TRANSPORT_ERRORS:
                return  # the reader notices, too
            finally:
                self._outgoing.task_done()

    async def _close(self, socket: aiohttp.ClientWebSocketResponse, workers: list[asyncio.Task[None]]) -> None:
        try:
            await asyncio.wait_for(self._outgoing.join(), 1.0)
            await socket.close()
        except TRANSPORT_ERRORS:
            pass
        for worker in workers:
            worker.cancel()


async def connect(voice: Voice, verb: Verb, base: str) -> Next | None:
    """Connect the call to a voice agent. Return the document of `action`, or None if there is no action.

    If the person hangs up (Over), the action of a ConversationRelay gets its result all the same.
    """
    from .conversation_relay import RelaySession
    from .media_stream import StreamSession
    from .voice import Next

    noun = verb.inside[0]
    session = RelaySession(voice, noun) if noun.name == "ConversationRelay" else StreamSession(voice, noun, base)
    action = urljoin(base, verb.attributes["action"]) if "action" in verb.attributes else ""
    try:
        await session.run()
    except Over:
        if action and isinstance(session, RelaySession):
            params = {**common_params(voice.call, "completed"), **session.result()}
            voice.world.spawn(voice.world.post(voice.call, action, verb.method(), params, "agent"))
        raise
    await session.reported()
    return Next(action, verb.method(), "agent", params=tuple(session.result().items())) if action else None
