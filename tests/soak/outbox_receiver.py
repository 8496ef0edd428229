"""A receiver for millions of messages: it counts while they arrive, and keeps a few bytes for each.

Message `round * groups + group` is called "group:round". The receiver refuses some a few times, puts some off and
answers some late; which ones follows from the seed and the name alone.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from typing import Any

import uvloop

from tests.support.waiting import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
LATER = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class CountingReceiver:
    """Run the server in a thread. `free_groups` is how many groups, from the first, have no order.

    `received` and `accepted` count the requests and the responses of 200 for each message, up to 255.
    """

    def __init__(self, groups: int, rounds: int, free_groups: int, seed: int) -> None:
        self._groups, self._free_groups, self._seed = groups, free_groups, seed
        self.received, self.accepted = bytearray(groups * rounds), bytearray(groups * rounds)
        self.requests = self.out_of_order = self.at_once = 0
        self.examples: list[str] = []
        self._latest, self._open = [-1] * groups, [0] * groups
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def begin(self, group: int, round_: int) -> tuple[bytes, float]:
        """Count a request; return the response and its delay. Call `end` when it is sent."""
        index = round_ * self._groups + group
        visit = self.received[index]
        self.received[index] = min(visit + 1, 255)
        self.requests += 1
        if group >= self._free_groups:
            if round_ < self._latest[group]:
                self.out_of_order += 1
                self._remember(f"{group}:{round_} after {group}:{self._latest[group]}")
            if self._open[group]:
                self.at_once += 1
                self._remember(f"{group}:{round_} while {group}:{self._latest[group]} was open")
            self._latest[group] = max(self._latest[group], round_)
        self._open[group] += 1
        return self._response(group, round_, visit)

    def end(self, group: int, round_: int, response: bytes) -> None:
        self._open[group] -= 1
        if response is OK:
            index = round_ * self._groups + group
            self.accepted[index] = min(self.accepted[index] + 1, 255)

    def _response(self, group: int, round_: int, visit: int) -> tuple[bytes, float]:
        chance = zlib.crc32(f"{self._seed}:{group}:{round_}".encode()) % 10_000
        if chance < 100:
            return (BROKEN, 0.0) if visit <= chance % 2 else (OK, 0.0)
        if chance < 200:
            return (LATER, 0.0) if visit == 0 else (OK, 0.0)
        if chance < 500:
            return OK, 0.05 + (chance % 10) * 0.06 if visit == 0 else 0.0
        return OK, 0.0

    def _remember(self, what: str) -> None:
        if len(self.examples) < 20:
            self.examples.append(what)

    def _run(self) -> None:
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        )
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        self._loop.close()


class _Connection(asyncio.Protocol):
    """One connection, on which a request follows the response to the one before it."""

    def __init__(self, receiver: CountingReceiver) -> None:
        self._receiver, self._kept = receiver, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop's is of no class of asyncio

    def data_received(self, data: bytes) -> None:
        self._kept += data
        while (end := self._kept.find(b"\r\n\r\n")) >= 0:
            whole = end + 4 + _length(self._kept[:end])
            if len(self._kept) < whole:
                return
            body, self._kept = self._kept[end + 4 : whole], self._kept[whole:]
            self._take(body)

    def _take(self, body: bytes) -> None:
        group, _, round_ = body[body.index(b':"') + 2 : -2].partition(b":")  # {"name":"group:round"}
        place = int(group), int(round_)
        response, delay_s = self._receiver.begin(*place)
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._answer, place, response)
        else:
            self._answer(place, response)

    def _answer(self, place: tuple[int, int], response: bytes) -> None:
        if not self._transport.is_closing():  # the router was killed meanwhile
            self._transport.write(response)
        self._receiver.end(*place, response)


def _length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
