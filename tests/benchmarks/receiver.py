"""A receiver that costs almost nothing: answers every POST with 200, and counts and times by group.

`python -m tests.benchmarks.receiver` prints its port. GET tells what has come as JSON and starts over.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Seen:
    def __init__(self) -> None:
        self.count, self.first, self.last = 0, 0.0, 0.0
        self.open, self.most_open = 0, 0
        self.last_of: dict[bytes, tuple[int, float]] = {}
        self.disorder, self.gaps = 0, list[float]()

    def note(self, group: bytes, number: int) -> None:
        now = time.time()
        self.first = self.first or now
        self.last = now
        self.count += 1
        before = self.last_of.get(group)
        if before:
            self.disorder += number != before[0] + 1
            self.gaps.append((now - before[1]) * 1000)
        self.last_of[group] = (number, now)

    def told(self) -> bytes:
        gaps = sorted(self.gaps)
        return json.dumps(
            {
                "count": self.count,
                "first": self.first,
                "last": self.last,
                "disorder": self.disorder,
                "groups": len(self.last_of),
                "gap_p50_ms": statistics.median(gaps) if gaps else None,
                "gap_p99_ms": gaps[int(len(gaps) * 0.99)] if gaps else None,
            }
        ).encode()


class Receiver(asyncio.Protocol):
    def __init__(self, seen: list[Seen]) -> None:
        self._seen, self._kept = seen, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._kept += data
        while (end := self._kept.find(b"\r\n\r\n")) >= 0:
            head = self._kept[:end]
            length = _header(head, b"content-length:")
            whole = end + 4 + int(length or 0)
            if len(self._kept) < whole:
                return
            body, self._kept = self._kept[end + 4 : whole], self._kept[whole:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            told = self._seen[0].told()
            if b"/new" in head[:20]:
                self._seen[0] = Seen()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told) + told)  # type: ignore[attr-defined]
            return
        self._seen[0].note(_header(head, b"dispatch-group:"), int(body[5 : body.index(b"}")]))
        self._transport.write(ANSWER)  # type: ignore[attr-defined]


def _header(head: bytes, name: bytes) -> bytes:
    at = head.lower().find(name)
    return (
        head[at + len(name) : head.find(b"\r\n", at) if head.find(b"\r\n", at) > 0 else None].strip()
        if at >= 0
        else b""
    )


async def main() -> None:
    seen = [Seen()]
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(seen), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
