"""A proxy in front of a server that cuts connections after a command ran and before its reply passed.

    with ReplyCutter(address) as proxy:
        connect_to(proxy.port)
        proxy.cut(3)

`address` is a path of a Unix socket, or (host, port). The proxy runs on an event loop in a thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from types import TracebackType

from tests.support.waiting import PATIENCE

CHUNK = 1 << 16
Address = str | tuple[str, int]


class ReplyCutter:
    """The proxy. `cuts` counts the replies that were lost so far."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
        self._wanted, self._marker = 0, b""
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="reply-cutter", daemon=True)
        self._links: set[_Link] = set()

    def __enter__(self) -> ReplyCutter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self, times: int, marker: bytes = b"") -> None:
        """Lose the replies to the next `times` requests that contain `marker`, each with its connection."""
        with self._lock:
            self._wanted, self._marker = times, marker

    def lead_to(self, address: Address) -> None:
        """Connect new clients to another server."""
        self._address = address

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listening))
        try:
            self._loop.run_forever()
        finally:
            server.close()
            for link in list(self._links):
                link.close()
            tasks = asyncio.all_tasks(self._loop)
            self._loop.run_until_complete(
                asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
            )
            self._loop.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._address, str):
            return await asyncio.open_unix_connection(self._address)
        return await asyncio.open_connection(*self._address)

    async def _serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        try:
            far, to_far = await self._connect()
        except OSError:  # the server is down: so is the proxy
            to_near.transport.abort()
            return
        link = _Link(self, to_near, to_far)
        self._links.add(link)
        await asyncio.gather(link.send_requests(near), link.return_replies(far))
        self._links.discard(link)

    def takes(self, request: bytes) -> bool:
        """Return whether the reply to this request is to be lost."""
        if not self._wanted:
            return False
        with self._lock:
            if not self._wanted or self._marker not in request:
                return False
            self._wanted -= 1
            return True


class _Link:
    """One client's connection with its counterpart to the server."""

    def __init__(self, proxy: ReplyCutter, to_near: asyncio.StreamWriter, to_far: asyncio.StreamWriter) -> None:
        self._proxy, self._to_near, self._to_far = proxy, to_near, to_far
        self._is_cut = False

    async def send_requests(self, near: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await near.read(CHUNK):
                self._is_cut = self._is_cut or self._proxy.takes(data)
                self._to_far.write(data)
                await self._to_far.drain()
        self._to_far.close()

    async def return_replies(self, far: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await far.read(CHUNK):
                if self._is_cut:  # the server has answered, so the command ran
                    self._proxy.cuts += 1
                    break
                self._to_near.write(data)
                await self._to_near.drain()
        self.close()

    def close(self) -> None:
        self._to_near.transport.abort()
        self._to_far.close()
