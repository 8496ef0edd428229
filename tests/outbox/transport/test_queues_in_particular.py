"""The behavior of individual queues, and their configuration."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import stomp
from django.core.exceptions import ImproperlyConfigured

from dispatch.core import clock
from dispatch.core.redis import client
from dispatch.outbox import queues
from dispatch.outbox.checks import contradictions, refuse_contradictions
from dispatch.outbox.queues import QueueUnavailable, redis_streams
from dispatch.outbox.queues.activemq import ActiveMqConsumer, Place
from tests.support.waiting import PATIENCE, wait_until

from .brokers import ActiveMq, ActiveMqServer, File, Redis, take
from .conftest import Make


class SentFrames(stomp.ConnectionListener):
    """Keeps (command, headers) of each frame that a connection sends."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, dict[str, str]]] = []

    def on_send(self, frame: Any) -> None:
        self.frames.append((frame.cmd, dict(frame.headers)))


class TestConfiguration:
    @pytest.mark.parametrize(
        ("kind", "url", "file"),
        [("rabbit", "", ""), ("", "", ""), ("embedded", "", ""), ("sqs", "", ""), ("activemq", "", ""),
         ("sqs", "https://sqs.us-east-1.amazonaws.com/1/not-fifo", ""), ("activemq", "http://mq.example/q", ""),
         ("activemq", "stomp://mq.example/", ""), ("redis", "redis//typo", ""), ("redis", "redis://h:many/0", "")],
    )  # fmt: skip
    def test_invalid_configuration_fails_immediately(self, settings: Any, kind: str, url: str, file: str) -> None:
        settings.OUTBOX_QUEUE_TYPE, settings.OUTBOX_QUEUE_URL, settings.OUTBOX_EMBEDDED_FILE = kind, url, file
        with pytest.raises(ImproperlyConfigured, match="OUTBOX_"):
            queues.publisher()
        with pytest.raises(ImproperlyConfigured, match="OUTBOX_"):
            queues.consumer("one")
        (found,) = contradictions()
        assert found.id == "dispatch.E650"
        with pytest.raises(ImproperlyConfigured, match="OUTBOX_"):  # a process that delivers does not start
            refuse_contradictions()

    @pytest.mark.parametrize(("kind", "package"), [("sqs", "boto3"), ("activemq", "stomp.py")])
    def test_a_missing_package_names_the_command_that_installs_it(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
    ) -> None:
        monkeypatch.delitem(sys.modules, queues.TYPES[kind], raising=False)
        monkeypatch.setitem(sys.modules, package.removesuffix(".py"), None)
        settings.OUTBOX_QUEUE_TYPE = kind
        with pytest.raises(ImproperlyConfigured, match=rf"pip install -c constraints\.txt {re.escape(package)}$"):
            queues.publisher()

    def test_stomp_places(self) -> None:
        full = Place.parse("stomp+ssl://us%40er:p%2Fw@mq.example/dispatch.pointers")
        assert (full.host, full.port, full.tls, full.user, full.password, full.destination) == (
            "mq.example",
            61614,
            True,
            "us@er",
            "p/w",
            "/queue/dispatch.pointers",
        )
        with pytest.raises(ImproperlyConfigured) as refused:
            Place.parse("http://user:hunter2@mq.example/q")
        assert "hunter2" not in str(refused.value)

    def test_activemq_sends_a_router_no_more_than_it_can_work_on(self, settings: Any) -> None:
        settings.OUTBOX_ROUTER_CALLS = 20
        held = ActiveMqConsumer(Place.parse("stomp://mq.example/q"), "router").max_held
        assert held is not None
        # Those beyond the attempts may wait for their organization's share.
        assert 20 < held <= 20 + 100

    @pytest.mark.parametrize("kind", ["redis", "sqs", "activemq"])
    def test_missing_server_is_a_warning_and_an_error(
        self, settings: Any, make_pointer: Make, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        place = {"redis": "redis://{}/0", "sqs": "http://{}/1/q.fifo", "activemq": "stomp://{}/q"}[kind]
        settings.OUTBOX_QUEUE_TYPE = kind
        settings.OUTBOX_QUEUE_URL = place.format("127.0.0.1:1")
        assert queues.warn_if_unreachable() is False
        with queues.publisher() as publisher, queues.consumer("one") as consumer:
            with pytest.raises(QueueUnavailable):
                publisher.publish(make_pointer(), "1-1")
            with pytest.raises(QueueUnavailable):
                consumer.receive(1, wait_s=0)


class TestActiveMq:
    def test_broker_remembers_no_acknowledgments_of_a_router(
        self, settings: Any, make_pointer: Make, activemq_server: ActiveMqServer
    ) -> None:
        """It does for those in transactions, until the connection ends: 20,000 made it ten times slower."""
        broker = ActiveMq(settings, activemq_server)
        with broker.publisher() as publisher, broker.consumer() as consumer:
            publisher.publish_many([(make_pointer(message=n), f"{n}-1") for n in range(1, 6)])
            received = take(consumer, 5)
            sent = SentFrames()
            consumer._link._connection.set_listener("sent", sent)  # type: ignore[attr-defined]
            received[0].release(0.0)
            consumer.ack_many([*received[1:], *take(consumer, 1)])
        acknowledged = [headers for command, headers in sent.frames if command == "ACK"]
        assert len(acknowledged) == len(received) + 1
        assert not any("transaction" in headers for headers in acknowledged)
        assert broker.left() == 0


class TestRedis:
    @pytest.fixture(autouse=True)
    def _redis(self, settings: Any) -> None:
        Redis(settings)
        settings.OUTBOX_VISIBILITY_S = 60.0

    def test_a_delay_goes_by_the_clock(self, make_pointer: Make) -> None:
        with queues.publisher() as publisher, queues.consumer("one") as consumer:
            publisher.publish(make_pointer(), "1-1")
            consumer.receive(1, 1)[0].release(600)
            clock.travel(500)
            assert consumer.receive(1, 0) == []
            clock.travel(101)
            assert len(consumer.receive(1, 0)) == 1

    def test_emptied_redis_starts_with_a_new_stream(self, make_pointer: Make) -> None:
        with queues.publisher() as publisher, queues.consumer("one") as consumer:
            publisher.publish(make_pointer(), "1-1")
            (lost,) = consumer.receive(1, 1)
            client.client().flushdb()
            lost.ack()
            lost.release(5)
            publisher.publish(make_pointer(message=2), "2-1")
            found = wait_until(lambda: consumer.receive(5, 0.2))
            assert '"id":"2"' in found[0].pointer_json
            assert len(found) == 1

    def test_acknowledged_pointers_leave_nothing_behind(self, make_pointer: Make) -> None:
        with queues.publisher() as publisher, queues.consumer("one") as consumer:
            publisher.publish_many([(make_pointer(), f"{n}-1") for n in range(3)])
            first, *others = consumer.receive(3, 1)
            first.release(0)
            consumer.ack_many([*others, *consumer.receive(1, 1)])
        server = client.client()
        assert server.xlen(redis_streams.stream_key()) == 0
        assert server.zcard(redis_streams.delayed_key()) == 0
        assert server.xpending(redis_streams.stream_key(), redis_streams.GROUP)["pending"] == 0

    def test_late_release_does_not_restore_an_acknowledged_pointer(
        self, settings: Any, make_pointer: Make
    ) -> None:
        settings.OUTBOX_VISIBILITY_S = 0.2
        with queues.publisher() as publisher, queues.consumer("one") as slow, queues.consumer("two") as other:
            publisher.publish(make_pointer(), "1-1")
            (held,) = slow.receive(1, 1)
            (again,) = wait_until(lambda: other.receive(1, 0.2))
            again.ack()
            held.release(0)
            held.ack()
            assert other.receive(1, 0.4) == []

    def test_dead_consumers_are_removed_unless_they_hold_something(
        self, make_pointer: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_streams, "DELETE_CONSUMER_AFTER_MS", 0)
        with queues.publisher() as publisher:
            publisher.publish_many([(make_pointer(), f"{n}-1") for n in range(2)])
        for name in ("settled", "holding"):
            (taken,) = queues.consumer(name).receive(1, 1)
            if name == "settled":
                taken.ack()
        queues.consumer("now").receive(1, 0)
        known = client.client().xinfo_consumers(redis_streams.stream_key(), redis_streams.GROUP)
        assert b"holding" in {consumer["name"] for consumer in known}
        assert b"settled" not in {consumer["name"] for consumer in known}

    def test_a_thousand_go_through_in_seconds(self, make_pointer: Make) -> None:
        pointers = [make_pointer() for _ in range(1000)]
        begin = time.monotonic()
        with queues.publisher() as publisher, queues.consumer("one") as consumer:
            for first in range(0, 1000, 10):
                publisher.publish_many([(p, f"{p.id}-1") for p in pointers[first : first + 10]])
            taken = 0
            while taken < 1000:
                found = consumer.receive(200, 1)
                consumer.ack_many(found)
                taken += len(found)
        assert time.monotonic() - begin < 60.0  # and not one a round


TAKE_ALL = """
import sys
from django.conf import settings
settings.configure(OUTBOX_QUEUE_TYPE="embedded", OUTBOX_EMBEDDED_FILE=sys.argv[1], OUTBOX_VISIBILITY_S=60,
                   OUTBOX_DEDUP_S=300, OUTBOX_QUEUE_URL="")
from dispatch.outbox.queues import embedded
import json
with embedded.consumer(sys.argv[1], sys.argv[2]) as consumer:
    while found := consumer.receive(3, 0.5):
        for delivery in found:
            print(json.loads(delivery.pointer_json)["id"])
            delivery.ack()
"""


class TestFile:
    def test_several_processes_share_it(self, settings: Any, tmp_path: Path, make_pointer: Make) -> None:
        broker = File(settings, tmp_path)
        settings.OUTBOX_VISIBILITY_S = 60.0
        pointers = [make_pointer() for _ in range(200)]
        with broker.publisher() as publisher:
            publisher.publish_many([(pointer, f"{pointer.id}-1") for pointer in pointers])
            started = [
                subprocess.Popen(
                    [sys.executable, "-c", TAKE_ALL, str(broker.file), name], stdout=subprocess.PIPE, text=True
                )
                for name in ("a", "b", "c")
            ]
            publisher.publish(make_pointer(message=999), "999-1")
            taken = [process.communicate(timeout=PATIENCE)[0].split() for process in started]
        assert sorted(name for names in taken for name in names) == sorted(
            [*(pointer.id for pointer in pointers), "999"]
        )

    def test_visibility_and_repetition_go_by_the_clock(
        self, settings: Any, tmp_path: Path, make_pointer: Make
    ) -> None:
        broker = File(settings, tmp_path)
        settings.OUTBOX_VISIBILITY_S, settings.OUTBOX_DEDUP_S = 60.0, 300.0
        with broker.publisher() as publisher, broker.consumer() as consumer:
            publisher.publish(make_pointer(message=1), "1-1")
            (lost,) = consumer.receive(1, 0)
            clock.travel(61)
            (again,) = consumer.receive(1, 0)
            lost.ack()  # no longer its to acknowledge
            lost.release(0)
            assert consumer.receive(1, 0) == []
            again.ack()
            publisher.publish(make_pointer(message=1), "1-1")
            assert consumer.receive(1, 0) == []
            clock.travel(301)
            publisher.publish(make_pointer(message=1), "1-1")
            assert len(consumer.receive(1, 0)) == 1
