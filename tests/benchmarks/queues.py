"""Pass pointers through each type of queue: publish, receive and acknowledge with one publisher and one consumer.

The last pointers should take as long as the first: a queue must keep nothing of what was acknowledged. SQS is left
out, because moto's speed is not that of Amazon's servers.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dispatch.core.redis import client
from dispatch.outbox.pointer import MessagePointer
from dispatch.outbox.queues import Consumer, Publisher, activemq, embedded, redis_streams
from tests.benchmarks import Result
from tests.outbox.transport.brokers import ActiveMqServer

POINTERS = int(os.environ.get("BENCH_POINTERS", "50000"))
PART = POINTERS // 10
BATCH, GROUPS, AHEAD = 200, 500, 400


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "pointers.sqlite3")
        yield from pass_through("embedded", embedded.publisher(file), embedded.consumer(file, "one"))
        client.client().flushdb()
        yield from pass_through("redis", redis_streams.publisher(""), redis_streams.consumer("", "one"))
        if ActiveMqServer.installed():
            server = ActiveMqServer(Path(folder), scheduler=False)
            server.start()
            try:
                url = f"stomp://127.0.0.1:{server.port}/pointers"
                yield from pass_through("activemq", activemq.publisher(url), activemq.consumer(url, "one"))
            finally:
                server.stop()


def pass_through(kind: str, publisher: Publisher, consumer: Consumer) -> Iterator[Result]:
    """The rates of the first and of the last tenth."""
    published = received = 0
    moments = [time.monotonic()]
    with publisher, consumer:
        while received < POINTERS:
            while published - received < AHEAD and published < POINTERS:
                batch = [(_pointer(number), str(number)) for number in range(published, published + BATCH)]
                assert not any(publisher.publish_many(batch))
                published += BATCH
            deliveries = consumer.receive(BATCH, 1.0)
            consumer.ack_many(deliveries)
            received += len(deliveries)
            if received >= PART * len(moments):
                moments.append(time.monotonic())
    for name, end in (("first", 1), ("last", -1)):
        took_s = moments[end] - moments[end - 1]
        yield Result(f"{kind}: the {name} {PART:,} of {POINTERS:,} pointers", PART / took_s, "pointers/s")


def _pointer(number: int) -> MessagePointer:
    return MessagePointer(
        id=str(number), poolCode="DISPATCH-POOL", authToken=f"1.{number}.x", mediationType="HTTP",
        mediationTarget="http://127.0.0.1/outbox/process/", messageGroupId=f"group {number % GROUPS}",
    )  # fmt: skip
