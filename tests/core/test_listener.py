"""A listener for notifications goes on after Redis hung, went away or refused it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis.client import PubSub

from dispatch.core.redis import listener
from dispatch.core.redis.client import client, connect, key
from tests.harness.redis_proxy import RedisProxy, redis_proxy
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["redis_proxy"]

# A login whose user the tests limit.
LIMITED = "listener-of-a-test"


class Listening:
    """A listener in a thread, with what it has passed on."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.outages = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        listener.listen(
            lambda: key("test-channel"),
            self._stopping.is_set,
            self.messages.append,
            self._count_outage,
            max_pause_s=0.1,
        )

    def _count_outage(self) -> None:
        self.outages += 1

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def hears(self, proxy: RedisProxy, message: str) -> None:
        """Publish the message until it is passed on. It is lost while nobody is subscribed."""

        def is_heard() -> bool:
            with proxy.direct():
                client().publish(key("test-channel"), message)
            return message in self.messages

        wait_until(is_heard, message="the message is not passed on", interval=0.05)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        assert not self.is_alive


@pytest.fixture
def listening(redis_proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    monkeypatch.setattr(listener, "CHECK_S", 0.1)
    monkeypatch.setattr(listener, "ANSWER_S", 0.5)
    monkeypatch.setattr(listener, "POLL_S", 0.05)
    monkeypatch.setattr(listener, "FIRST_PAUSE_S", 0.05)
    made = Listening()
    yield made
    redis_proxy.pass_on()
    made.stop()


def test_listener_leaves_a_server_that_hangs(listening: Listening, redis_proxy: RedisProxy) -> None:
    listening.hears(redis_proxy, "first")
    before = redis_proxy.connections
    redis_proxy.hang()
    wait_until(lambda: redis_proxy.connections > before, message="it keeps its connection")
    redis_proxy.pass_on()
    wait_until(lambda: listening.outages > 0, message="nobody learns that messages were lost")
    listening.hears(redis_proxy, "second")


def test_lost_connection_counts_as_an_outage(listening: Listening, redis_proxy: RedisProxy) -> None:
    listening.hears(redis_proxy, "first")
    redis_proxy.refuse()
    redis_proxy.accept_again()
    wait_until(lambda: listening.outages > 0, message="nobody learns that messages were lost")
    listening.hears(redis_proxy, "second")


def test_ping_that_a_lost_connection_left_unanswered_is_not_waited_for(
    redis_proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriptions: list[PubSub] = []

    class Recorded(PubSub):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            subscriptions.append(self)

    monkeypatch.setattr("redis.client.PubSub", Recorded)
    monkeypatch.setattr(listener, "CHECK_S", 0.1)
    monkeypatch.setattr(listener, "ANSWER_S", 2 * PATIENCE)  # a slow server is not left
    monkeypatch.setattr(listener, "POLL_S", 0.05)
    listening = Listening()
    try:
        listening.hears(redis_proxy, "first")
        redis_proxy.cut_after(b"PING")
        wait_until(lambda: listening.outages > 0, message="nobody learns that messages were lost")
        (subscription,) = subscriptions
        wait_until(lambda: subscription.health_check_response_counter <= 0, message="it waits for the lost answer")
        listening.hears(redis_proxy, "second")
        assert (len(subscriptions), listening.outages, redis_proxy.cuts) == (1, 1, 1)
    finally:
        listening.stop()


def test_listener_goes_on_when_its_channel_is_permitted_again(redis_proxy: RedisProxy, settings: Any) -> None:
    admin = connect()
    admin.execute_command("ACL", "SETUSER", LIMITED, "on", ">secret", "~*", "+@all", "resetchannels")
    settings.REDIS_URL = redis_proxy.url.replace("redis://", f"redis://{LIMITED}:secret@")
    listening = Listening()
    try:
        before = redis_proxy.connections
        wait_until(lambda: redis_proxy.connections > before + 2, message="it does not try again")
        admin.execute_command("ACL", "SETUSER", LIMITED, "allchannels")
        wait_until(lambda: listening.outages > 0)
        assert listening.is_alive
    finally:
        listening.stop()
        admin.execute_command("ACL", "DELUSER", LIMITED)
