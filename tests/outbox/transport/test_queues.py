"""The guarantees of every queue, tested on every queue."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from dispatch.outbox import queues
from dispatch.outbox.pointer import MessagePointer
from dispatch.outbox.queues import Consumer, Delivery, QueueUnavailable
from tests.support.waiting import PATIENCE, wait_until

from .brokers import Broker, take
from .conftest import Make

ALL = [
    "embedded",
    "redis",
    "sqs",
    "activemq",
    pytest.param("activemq_scheduler", marks=pytest.mark.soak),
]
pytestmark = pytest.mark.parametrize("broker", ALL, indirect=True)


def ids(deliveries: list[Delivery]) -> list[str]:
    return [json.loads(delivery.pointer_json)["id"] for delivery in deliveries]


class TestEveryQueue:
    def test_a_pointer_arrives_as_it_was_published(self, broker: Broker, make_pointer: Make) -> None:
        pointer = make_pointer()
        with broker.publisher() as publisher, broker.consumer() as consumer:
            publisher.publish(pointer, "1-1")
            (delivery,) = take(consumer, 1)
            delivery.ack()
        assert MessagePointer.from_json(delivery.pointer_json) == pointer

    def test_pointers_published_together_keep_their_order(self, broker: Broker, make_pointer: Make) -> None:
        pointers = [make_pointer(group=f"lead {number}") for number in range(25)]
        with broker.publisher() as publisher, broker.consumer() as consumer:
            outcomes = publisher.publish_many([(pointer, f"{pointer.id}-1") for pointer in pointers])
            found = take(consumer, 25)
            consumer.ack_many(found)
        assert outcomes == [None] * 25
        assert ids(found) == [pointer.id for pointer in pointers]

    def test_a_repetition_counts_as_published(self, broker: Broker, make_pointer: Make) -> None:
        pointer = make_pointer()
        with broker.publisher() as publisher, broker.consumer() as consumer:
            publisher.publish(pointer, "1-1")
            publisher.publish(pointer, "1-1")
            assert publisher.publish_many([(pointer, "1-1")]) == [None]
            expected = 1 if publisher.deduplicates else 3
            for delivery in take(consumer, 1):
                delivery.ack()
            more = [d for _ in range(expected - 1) for d in take(consumer, 1)]
            assert consumer.receive(1, wait_s=0.3) == []
        assert len(more) == expected - 1

    def test_next_epoch_of_a_message_is_not_a_duplicate(self, broker: Broker, make_pointer: Make) -> None:
        with broker.publisher() as publisher, broker.consumer() as consumer:
            for epoch in (1, 2):
                publisher.publish(make_pointer(message=5, epoch=epoch), f"5-{epoch}")
                (delivery,) = take(consumer, 1)
                assert json.loads(delivery.pointer_json)["authToken"] == f"{epoch}.2.x"
                delivery.ack()

    def test_acknowledged_pointer_never_returns(self, broker: Broker, make_pointer: Make) -> None:
        with broker.publisher() as publisher, broker.consumer() as consumer:
            publisher.publish_many([(make_pointer(group=f"{n}"), f"{n}-1") for n in range(3)])
            first, *others = take(consumer, 3)
            first.ack()
            consumer.ack_many(others)
            consumer.ack_many([])
        assert broker.left() == 0

    def test_pointers_of_a_dead_consumer_go_to_another(
        self, broker: Broker, make_pointer: Make, settings: Any
    ) -> None:
        settings.OUTBOX_VISIBILITY_S = 2.0
        with broker.publisher() as publisher, broker.consumer("one") as dead, broker.consumer("two") as other:
            publisher.publish(make_pointer(message=9), "9-1")
            began = time.monotonic()
            (lost,) = take(dead, 1)
            early = other.receive(1, wait_s=0.3)
            assert early == [] or time.monotonic() - began >= 2.0  # on a machine that stood still
            broker.die(dead)
            (found,) = early or take(other, 1)
            assert found.pointer_json == lost.pointer_json
            found.ack()
        assert broker.left() == 0

    def test_released_pointer_returns_after_its_delay(self, broker: Broker, make_pointer: Make) -> None:
        with broker.publisher() as publisher, broker.consumer() as consumer:
            publisher.publish(make_pointer(message=3), "3-1")
            (delivery,) = take(consumer, 1)
            released = time.monotonic()
            delivery.release(2.0)
            (again,) = take(consumer, 1)
            waited = time.monotonic() - released
            again.ack()
        assert again.pointer_json == delivery.pointer_json
        assert waited >= 1.99

    def test_pointer_released_without_delay_returns_immediately(self, broker: Broker, make_pointer: Make) -> None:
        with broker.publisher() as publisher, broker.consumer("one") as consumer:
            publisher.publish(make_pointer(), "1-1")
            take(consumer, 1)[0].release()
            if broker.kind == "activemq":  # a group stays with its consumer while that one lives
                consumer.close()
            with broker.consumer("two") as other:
                (delivery,) = take(other, 1)
                delivery.ack()

    def test_consumers_share_the_work_and_none_gets_anothers(self, broker: Broker, make_pointer: Make) -> None:
        pointers = [make_pointer(group=f"lead {number}") for number in range(60)]
        # moto checks whether a message is visible and then hides it, without a lock: two concurrent requests
        # both get the same one, unlike with SQS.
        turn = threading.Lock() if broker.kind == "sqs" else nullcontext()

        def receive(consumer: Consumer) -> list[Delivery]:
            with turn:
                return consumer.receive(5, wait_s=0.8)

        def work(name: str) -> list[str]:
            mine: list[str] = []
            with broker.consumer(name) as consumer:
                while found := receive(consumer):
                    mine += ids(found)
                    consumer.ack_many(found)
            return mine

        with broker.publisher() as publisher, ThreadPoolExecutor(3) as threads:
            publisher.publish_many([(pointer, f"{pointer.id}-1") for pointer in pointers])
            done = [name for mine in threads.map(work, ("one", "two", "three")) for name in mine]
        assert sorted(done) == sorted(pointer.id for pointer in pointers)

    def test_one_publisher_and_one_delivery_serve_many_threads(self, broker: Broker, make_pointer: Make) -> None:
        pointers = [make_pointer(group=f"lead {number}") for number in range(40)]
        with broker.publisher() as publisher, broker.consumer() as consumer, ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda pointer: publisher.publish(pointer, f"{pointer.id}-1"), pointers))
            found = take(consumer, 40)
            list(threads.map(lambda delivery: delivery.ack(), found))
        assert broker.left() == 0
        assert sorted(ids(found)) == sorted(pointer.id for pointer in pointers)

    def test_an_empty_queue_is_waited_for_and_no_longer(self, broker: Broker, make_pointer: Make) -> None:
        with broker.publisher() as publisher, broker.consumer() as consumer:
            consumer.receive(1, wait_s=0)  # connected
            begin = time.monotonic()
            assert consumer.receive(1, wait_s=0.4) == []
            assert 0.4 <= time.monotonic() - begin < 60.0
            with ThreadPoolExecutor(1) as threads:
                begin = time.monotonic()
                waiting = threads.submit(consumer.receive, 1, 15.0)
                publisher.publish(make_pointer(), "1-1")
                (delivery,) = waiting.result(PATIENCE)
                assert time.monotonic() - begin < 15.0  # it did not sleep to the end
                delivery.ack()

    @pytest.mark.parametrize("text", ["not a pointer", '{"id": 1}', "{" * 300, "ünïcödé \u2603"])
    def test_poison_arrives_unchanged_and_can_be_acknowledged(
        self, broker: Broker, make_pointer: Make, text: str
    ) -> None:
        with broker.publisher() as publisher, broker.consumer() as consumer:
            broker.put_raw(text)
            publisher.publish(make_pointer(message=4), "4-1")
            found = take(consumer, 2)
            consumer.ack_many(found)
        poison, good = sorted((d.pointer_json for d in found), key=lambda arrived: arrived != text)
        assert poison == text
        assert MessagePointer.from_json(good).id == "4"

    def test_unavailable_queue_raises_and_recovers(self, broker: Broker, make_pointer: Make) -> None:
        with broker.publisher() as publisher, broker.consumer() as consumer:
            with broker.away():
                with pytest.raises(QueueUnavailable):
                    publisher.publish(make_pointer(), "1-1")
                outcomes = publisher.publish_many([(make_pointer(), "2-1"), (make_pointer(), "3-1")])
                assert [type(outcome) for outcome in outcomes] == [QueueUnavailable] * 2
                with pytest.raises(QueueUnavailable):
                    consumer.receive(1, wait_s=0.1)
                if broker.kind != "redis":  # there the server answers; only our stream is unusable
                    assert queues.warn_if_unreachable() is False
            assert queues.warn_if_unreachable() is True
            publisher.publish(make_pointer(message=8), "8-1")
            found = wait_until(lambda: consumer.receive(1, wait_s=0.2))
            assert ids(found) == ["8"]
            found[0].ack()
