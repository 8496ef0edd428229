"""The soak's receiver counts disorder, so that a run without violations means something."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from tests.soak.outbox_receiver import CountingReceiver
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def receiver() -> Iterator[CountingReceiver]:
    with closing(CountingReceiver(groups=10, rounds=500, free_groups=1, seed=1)) as made:
        yield made


def connect(receiver: CountingReceiver) -> socket.socket:
    url = urlsplit(receiver.url)
    return socket.create_connection((url.hostname, url.port), timeout=PATIENCE)


def send(connection: socket.socket, group: int, round_: int) -> None:
    body = b'{"name":"%d:%d"}' % (group, round_)
    head = b"POST /hook HTTP/1.1\r\nHost: test\r\ncontent-length: %d\r\n\r\n" % len(body)
    connection.sendall(head)
    connection.sendall(body)


def rounds(receiver: CountingReceiver, group: int, *, late: bool) -> list[int]:
    """Return rounds whose first request is accepted, late or at once."""
    found = [receiver._response(group, round_, 0) for round_ in range(500)]
    return [n for n, (response, delay) in enumerate(found) if b" 200 " in response and (delay > 0.2) is late]


def test_ordered_requests_are_no_violation(receiver: CountingReceiver) -> None:
    chosen = rounds(receiver, 5, late=False)[:20]
    with connect(receiver) as connection:
        for round_ in chosen:
            send(connection, 5, round_)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(lambda: sum(receiver.accepted) == len(chosen))
    assert receiver.requests == sum(receiver.received) == len(chosen)
    assert receiver.out_of_order == receiver.at_once == 0


@pytest.mark.parametrize(("group", "counted"), [(5, 1), (0, 0)])
def test_an_earlier_message_after_a_later_one_counts(receiver: CountingReceiver, group: int, counted: int) -> None:
    first, second = rounds(receiver, group, late=False)[:2]
    with connect(receiver) as connection:
        for round_ in (second, first):
            send(connection, group, round_)
            assert connection.recv(1000)
    assert receiver.out_of_order == counted


@pytest.mark.parametrize(("group", "counted"), [(5, 1), (0, 0)])
def test_two_messages_of_a_group_at_once_count(receiver: CountingReceiver, group: int, counted: int) -> None:
    slow = rounds(receiver, group, late=True)[0]
    quick = next(round_ for round_ in rounds(receiver, group, late=False) if round_ > slow)
    with connect(receiver) as one, connect(receiver) as another:
        send(one, group, slow)
        wait_until(lambda: receiver.requests == 1, interval=0.005)
        send(another, group, quick)
        assert another.recv(1000)
        assert receiver.at_once == counted
        assert one.recv(1000)


def test_a_sender_that_dies_leaves_no_open_request(receiver: CountingReceiver) -> None:
    slow = rounds(receiver, 5, late=True)[0]
    with connect(receiver) as connection:
        send(connection, 5, slow)
        wait_until(lambda: receiver.requests == 1, interval=0.005)
    wait_until(lambda: sum(receiver.accepted) == 1)
    with connect(receiver) as connection:
        send(connection, 5, slow)
        assert connection.recv(1000)
    assert receiver.at_once == 0
