"""A body that is too long, too slow, or one of too many is rejected before it takes memory or disk."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from dispatch.core.web import body_limits
from dispatch.core.web.body_limits import BodyLimitMiddleware
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def temporary_files() -> set[str]:
    """Return the temporary files that processes of this machine have open, including unlinked ones."""
    folder = Path("/proc/self/fd")
    found = set()
    for entry in folder.iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(tempfile.gettempdir()) and "deleted" in target:
            found.add(target)
    return found


def send_raw(app_url: str, head: str, chunks: Iterable[bytes] = ()) -> bytes:
    """Return the answer to a hand-written request; stop sending when the server closes."""
    where = urlsplit(app_url)
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as connection:
        connection.sendall(head.format(host=where.netloc).encode())
        try:
            for chunk in chunks:
                connection.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = b""
        try:
            while data := connection.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize("path", ["/api/v1/submissions/", "/nowhere/", "/f/x/", "/telephony/x/", "/healthz"])
@pytest.mark.parametrize("length", [150 * 2**20, 10 * 2**30])
def test_a_declared_body_that_is_too_long_is_refused_unread(app_url, path, length):
    before = temporary_files()
    answer = send_raw(app_url, f"POST {path} HTTP/1.1\r\nHost: {{host}}\r\nContent-Length: {length}\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"413" in head.splitlines()[0], answer[:200]
    assert b"application/problem+json" in head
    assert json.loads(body)["type"] == "urn:dispatch:problem:too_large"
    assert temporary_files() <= before


def test_a_chunked_body_is_counted_and_refused(app_url):
    before = temporary_files()
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 65536
            yield b"10000\r\n" + b"x" * 65536 + b"\r\n"

    head = "POST /nowhere/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = send_raw(app_url, head, chunks())
    assert not answer or b" 413 " in answer.splitlines()[0]
    assert sent < 1000 * 65536, "the server went on reading"
    wait_until(lambda: temporary_files() <= before)
    assert requests.get(f"{app_url}/healthz", timeout=PATIENCE).ok


def test_only_the_named_routes_take_more(app_url):
    def status(path: str, size: int) -> int:
        return requests.post(f"{app_url}{path}", data=b"x" * size, timeout=PATIENCE).status_code

    assert status("/api/v1/schedule-imports/", 5 * 2**20) == 401
    assert status("/api/v1/leads/bulk/", 5 * 2**20) == 401
    assert status("/leads/upload/", 5 * 2**20) in (302, 403)
    assert status("/api/v1/submissions/", 2 * 2**20) == 401
    for path in ("/api/v1/submissions/", "/api/v1/leads/", "/api/v1/schedule-imports/1/cancel/", "/leads/"):
        with pytest.raises((requests.ConnectionError, AssertionError)):
            assert status(path, 5 * 2**20) != 413


# --- bodies that wait ------------------------------------------------------------------------------------------

KIB = 1024


class Upload:
    """A request whose body arrives piece by piece: `send` returns once the piece was read."""

    def __init__(self, limits: BodyLimitMiddleware, path: str = "/nowhere/") -> None:
        self.statuses: list[int] = []
        self._pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._read = asyncio.Event()
        scope = {
            "type": "http", "path": path, "method": "POST", "headers": [(b"transfer-encoding", b"chunked")],
        }  # fmt: skip
        self.task = asyncio.ensure_future(limits(scope, self._receive, self._answer))

    async def _receive(self) -> dict[str, Any]:
        self._read.set()
        return await self._pieces.get()

    async def _answer(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])

    async def send(self, size: int, *, is_last: bool = False) -> None:
        self._read.clear()
        self._pieces.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": not is_last})
        reading = asyncio.ensure_future(self._read.wait())
        await asyncio.wait({reading, self.task}, return_when="FIRST_COMPLETED")
        reading.cancel()

    async def leave(self) -> None:
        self._pieces.put_nowait({"type": "http.disconnect"})
        await self.task


async def reader(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body, and answer 200."""
    while (message := await receive())["type"] != "http.disconnect":
        if not message["more_body"]:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return


def limits_of(application: Any = reader) -> BodyLimitMiddleware:
    return BodyLimitMiddleware(application, default_bytes=1000 * KIB, routes=[("/large/", 5000 * KIB)])


@pytest.mark.parametrize(
    ("setting", "path", "sizes"),
    [("MAX_HELD_BYTES", "/nowhere/", [500]), ("MAX_HELD_DISK_BYTES", "/large/", [900, 1500])],
)
def test_bodies_that_wait_have_a_limit_in_all(monkeypatch, setting: str, path: str, sizes: list[int]) -> None:
    monkeypatch.setattr(body_limits, setting, 2000 * KIB)

    async def scenario() -> None:
        limits = limits_of()
        waiting = [Upload(limits, path) for _ in range(8)]
        for upload in waiting:
            for size in sizes:
                await upload.send(size * KIB)
        refused = [upload for upload in waiting if upload.statuses]
        assert [upload.statuses for upload in refused] == [[503]] * len(refused)
        assert 2 <= len(refused) <= 7
        webhook = Upload(limits)
        await webhook.send(20 * KIB, is_last=True)
        await webhook.task
        assert webhook.statuses == [200], "a small body is read all the same"
        for upload in waiting:
            if upload not in refused:
                await upload.leave()
        again = Upload(limits, path)
        for size in sizes:
            await again.send(size * KIB)
        await again.send(1, is_last=True)
        await again.task
        assert again.statuses == [200], "the others have left"

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_body_that_stops_arriving_ends_with_408(monkeypatch) -> None:
    monkeypatch.setattr(body_limits, "FIRST_BYTES_S", 0.05)

    async def scenario() -> None:
        stalled = Upload(limits_of())
        await stalled.send(1)
        await stalled.task
        assert stalled.statuses == [408]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_response_may_take_longer_than_its_body(monkeypatch) -> None:
    monkeypatch.setattr(body_limits, "FIRST_BYTES_S", 0.0)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        """Wait for the client to leave, as a long response does."""
        assert (await receive())["more_body"] is False
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def scenario() -> None:
        request = Upload(limits_of(application))
        await request.send(1, is_last=True)
        await request.leave()
        assert request.statuses == [200]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_the_application_refuses_bodies_beyond_the_limit_in_all(app_url, monkeypatch) -> None:
    monkeypatch.setattr(body_limits, "MAX_HELD_BYTES", 0)
    large = requests.post(f"{app_url}/nowhere/", data=b"x" * 2**20, timeout=PATIENCE)
    assert (large.status_code, large.headers["Retry-After"]) == (503, "5")
    assert large.json()["type"] == "urn:dispatch:problem:unavailable"
    assert requests.post(f"{app_url}/api/v1/submissions/", data=b"x" * 2**10, timeout=PATIENCE).status_code == 401
