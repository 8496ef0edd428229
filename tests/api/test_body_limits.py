"""A body that is too long is rejected before it is read, or as soon as it is counted."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

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
