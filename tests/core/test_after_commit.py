"""What a transaction sends to Redis is sent once, after its commit, and a refused part harms no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from dispatch.core.redis.after_commit import AT_ONCE, send_after_commit, send_values_after_commit, sent_together
from dispatch.core.redis.client import breaker, client, connect, key
from dispatch.core.runtime.queues import enqueue, enqueue_in, notify_loop, rq_queue
from tests.core.outages import redis_away
from tests.support.redis_requests import note_redis_requests

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = settings.DISPATCH_QUEUE
LEAVE = "tests.core.jobs.leave"


class Counters:
    """Counters in Redis, and the errors of those that could not be increased."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception] = {}

    def increase(self, name: str, add: Callable[[Any], object] | None = None) -> None:
        send_after_commit(
            "", add or (lambda pipe: pipe.incr(key(name))), lambda error: self.errors.update({name: error})
        )

    def read(self, *names: str) -> list[int]:
        return [int(client().get(key(name)) or 0) for name in names]


@pytest.fixture
def counters() -> Counters:
    return Counters()


def test_what_a_transaction_sends_is_one_request(counters, monkeypatch):
    enqueue(QUEUE, LEAVE, "w")  # the first time, RQ asks for the server's version
    sent = note_redis_requests(monkeypatch)
    with transaction.atomic():
        counters.increase("a")
        enqueue(QUEUE, LEAVE, "x")
        enqueue_in(QUEUE, 300, LEAVE, "y")
        notify_loop("auditor")
        with pytest.raises(RuntimeError), transaction.atomic():
            counters.increase("rolled back")
            raise RuntimeError
        counters.increase("b")
        assert sent == []
    assert len(sent) == 1
    assert counters.read("a", "rolled back", "b") == [1, 0, 1]
    assert rq_queue(QUEUE).count == 2
    assert rq_queue(QUEUE).scheduled_job_registry.count == 1
    assert counters.errors == {}


def test_a_large_transaction_is_sent_in_several_requests(counters, monkeypatch):
    sent = note_redis_requests(monkeypatch)
    with transaction.atomic():
        for _ in range(2 * AT_ONCE + 1):
            counters.increase("a")
    assert len(sent) == 3
    assert counters.read("a") == [2 * AT_ONCE + 1]


def test_without_a_transaction_it_is_sent_at_once(counters):
    counters.increase("a")
    assert counters.read("a") == [1]


def test_it_is_sent_after_what_the_transaction_did_before(counters):
    seen = []
    with transaction.atomic():
        counters.increase("a")
        transaction.on_commit(lambda: seen.extend(counters.read("a")))  # such as the release of a line
        counters.increase("a")
    assert (seen, counters.read("a")) == ([0], [2])


def test_command_that_cannot_be_made_harms_no_other(counters):
    def half(pipe: Any) -> None:
        pipe.incr(key("half"))
        raise ValueError("it cannot be serialized")

    with transaction.atomic():
        counters.increase("a")
        counters.increase("half", half)
        counters.increase("b")
    assert counters.read("a", "half", "b") == [1, 0, 1]
    assert list(counters.errors) == ["half"]


def test_command_that_fails_harms_no_other(counters):
    with transaction.atomic():
        counters.increase("a")
        counters.increase("text", lambda pipe: [pipe.set(key("text"), "x"), pipe.incr(key("text"))])
        counters.increase("b")
    assert counters.read("a", "b") == [1, 1]
    assert list(counters.errors) == ["text"]
    assert isinstance(counters.errors["text"], ResponseError)


def test_command_that_the_server_refuses_harms_no_other(counters):
    """Redis discards all of a transaction if it refuses one command, such as one that the login may not run."""
    client().execute_command("ACL", "SETUSER", "default", "-publish")
    try:
        with transaction.atomic():
            counters.increase("a")
            counters.increase("news", lambda pipe: pipe.publish("news", "x"))
            enqueue(QUEUE, LEAVE, "x")
    finally:
        client().execute_command("ACL", "SETUSER", "default", "+publish")
    assert counters.read("a") == [1]
    assert rq_queue(QUEUE).count == 1
    assert isinstance(counters.errors.pop("news"), NoPermissionError)
    assert counters.errors == {}


def test_full_server_refuses_all_parts_with_its_reason(counters):
    server = connect()
    server.config_set("maxmemory", 1)
    try:
        with transaction.atomic():
            counters.increase("a")
            counters.increase("b")
    finally:
        server.config_set("maxmemory", 0)
        server.close()
    assert {name: type(error) for name, error in counters.errors.items()} == dict.fromkeys("ab", OutOfMemoryError)
    assert breaker().is_open


def test_outage_fails_every_part_and_no_work(counters):
    with redis_away(), transaction.atomic():
        counters.increase("a")
        counters.increase("b")
    assert list(counters.errors) == ["a", "b"]


def test_values_of_a_transaction_with_one_key_are_sent_together(counters):
    def push(name: str) -> Callable[[list[Any], Any], object]:
        return lambda values, pipe: pipe.rpush(key(name), "-".join(values))

    def send(name: str, value: str) -> None:
        send_values_after_commit("", name, value, push(name), lambda error: counters.errors.update({name: error}))

    with transaction.atomic():
        send("ours", "a")
        send("theirs", "x")
        send("ours", "b")
        with pytest.raises(RuntimeError), transaction.atomic():
            send("ours", "rolled back")
            raise RuntimeError
    send("ours", "c")
    assert client().lrange(key("ours"), 0, -1) == [b"a-b", b"c"]
    assert client().lrange(key("theirs"), 0, -1) == [b"x"]
    assert counters.errors == {}


def test_values_that_cannot_be_added_harm_no_others(counters):
    def fail(values: list[Any], pipe: Any) -> None:
        raise ValueError(values)

    with transaction.atomic():
        for value in ("a", "b"):
            send_values_after_commit("", "bad", value, fail, lambda error: counters.errors.update(bad=error))
        counters.increase("good")
    assert counters.read("good") == [1]
    assert counters.errors["bad"].args == (["a", "b"],)


def test_commits_without_a_transaction_send_one_request(counters, monkeypatch):
    enqueue(QUEUE, LEAVE, "w")
    sent = note_redis_requests(monkeypatch)
    with sent_together():
        counters.increase("a")
        enqueue(QUEUE, LEAVE, "x")
        assert sent == []
    assert len(sent) == 1
    with pytest.raises(RuntimeError), sent_together():
        counters.increase("b")
        raise RuntimeError
    assert counters.read("a", "b") == [1, 1]
    assert rq_queue(QUEUE).count == 2
