"""Headers that are too long end the connection before they fill the memory of the process."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest
import requests

from dispatch.core.web.server import configure_server
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

BLOCK = b"a" * 65536
TOO_MANY_BLOCKS = 400  # 25 MiB


def blocks_taken(app_url: str, head: bytes, block: bytes = BLOCK) -> tuple[int, bytes]:
    """How many blocks after `head` the server took, and what it answered."""
    where = urlsplit(app_url)
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as connection:
        connection.sendall(head)
        taken = 0
        try:
            while taken < TOO_MANY_BLOCKS:
                connection.sendall(block)
                taken += 1
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            return taken, connection.recv(1000)
        except ConnectionResetError:
            return taken, b""


@pytest.mark.parametrize(
    ("head", "block"),
    [
        (b"GET /", BLOCK),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ", BLOCK),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"x-many: a\r\n" * 6000),
        (b"POST /nowhere/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ", BLOCK),
    ],
    ids=["url", "one header", "many headers", "trailer"],
)
def test_endless_headers_are_refused(app_url, head, block):
    taken, answer = blocks_taken(app_url, head, block)
    assert taken < TOO_MANY_BLOCKS, "the server keeps all of it"
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert requests.get(f"{app_url}/healthz", timeout=PATIENCE).ok


def test_headers_and_bodies_of_ordinary_size_are_accepted(app_url):
    headers = {f"X-{number}": "a" * 1000 for number in range(20)}
    answers = [
        requests.post(f"{app_url}/api/v1/schedule-imports/", data=b"x" * 2**20, headers=headers, timeout=PATIENCE),
        requests.get(f"{app_url}/healthz", headers=headers, timeout=PATIENCE),
    ]
    assert [answer.status_code for answer in answers] == [401, 200]


def test_pipelined_requests_are_answered(app_url):
    where = urlsplit(app_url)
    count = 2000
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as connection:
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connection.sendall(request * (count - 1) + last)
        answers = b""
        while data := connection.recv(65536):
            answers += data
    assert answers.count(b"HTTP/1.1 200") == count


def test_the_web_process_limits_headers():
    config = configure_server("127.0.0.1", 8000)
    assert config.http.__name__ == "HeaderLimitProtocol"
