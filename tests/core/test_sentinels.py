"""Every client of Redis follows a failover that sentinels decide, without a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as site
from django_rq.connection_utils import get_redis_connection
from redis.exceptions import RedisError

from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.models import EventCursor
from dispatch.core.redis import generation
from dispatch.core.redis.channel_layer import GuardedChannelLayer
from dispatch.core.redis.client import LEADS, REDIS_ERRORS, breaker, client, connect, key
from dispatch.core.runtime.queues import enqueue, enqueue_in, rq_queue
from dispatch.core.server_addresses import rq_connection
from dispatch.core.web import health
from tests.harness.leads import Floor
from tests.harness.redis_sentinels import SERVICE, RedisPair, redis_pair
from tests.leads.test_servers_restart import (
    LEADS as COUNT,
)
from tests.leads.test_servers_restart import (
    dispatcher,
    everybody_was_called_once,
    floor,
    goes_on,
    stops_in_the_middle,
)
from tests.phones import Simulator
from tests.support.processes import Process
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["floor", "redis_pair"]
pytestmark = pytest.mark.django_db(transaction=True)

GOES_ON_WITHIN_S = 30.0


def works(command: Callable[[], Any]) -> Callable[[], bool]:
    def attempt() -> bool:
        try:
            command()
        except REDIS_ERRORS:
            return False
        return True

    return attempt


def test_clients_follow_a_failover(redis_pair: RedisPair) -> None:
    assert generation.ensure_generation()
    client().set(key("kept"), "1")
    blocking = connect()
    assert blocking.get(key("kept")) == b"1"
    assert breaker().name.startswith(f"{SERVICE}@127.0.0.1:")
    redis_pair.replicated()
    redis_pair.kill_primary()
    lost_at = time.monotonic()
    wait_until(works(lambda: client().set(key("after"), "1")))
    assert time.monotonic() - lost_at < GOES_ON_WITHIN_S
    assert client().get(key("kept")) == b"1"
    assert blocking.get(key("kept")) == b"1"
    assert redis_pair.replica.client().get(key("after")) == "1"
    assert generation.ensure_generation()
    assert generation.key_name() in redis_pair.replica.client().keys(key("*"))
    assert client(LEADS) is client()
    wait_until(lambda: health.missing_redis() is None)


def test_the_dashboard_of_the_queues_follows(redis_pair: RedisPair) -> None:
    dashboard = get_redis_connection(rq_connection(redis_pair.url))
    assert dashboard.ping()
    redis_pair.replicated()
    redis_pair.kill_primary()
    wait_until(works(lambda: dashboard.set(key("seen"), "1")))
    assert redis_pair.replica.client().get(key("seen")) == "1"


def test_sockets_follow_a_failover(redis_pair: RedisPair) -> None:
    async def join(layer: Any) -> str:
        channel: str = await layer.new_channel()
        await layer.group_add("organization.1", channel)
        return channel

    async def hear() -> list[dict[str, Any]]:
        layer: Any = GuardedChannelLayer(hosts=[redis_pair.url], prefix="test-channels")
        channel = await join(layer)
        await layer.group_send("organization.1", {"type": "before"})
        messages = [await layer.receive(channel)]
        redis_pair.kill_primary()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    channel = await join(layer)
                    await layer.group_send("organization.1", {"type": "after"})
                    break
                except RedisError:
                    await asyncio.sleep(0.05)
            messages.append(await layer.receive(channel))
        await layer.flush()
        return messages

    assert [message["type"] for message in asyncio.run(hear())] == ["before", "after"]


class Supervised:
    """A command that is started again when it ends because Redis was unavailable, as a supervisor does."""

    def __init__(self, *command: str, env: dict[str, str]) -> None:
        self._runs = [Process(command, env)]

    def keep_running(self) -> None:
        if self._runs[-1].returncode is not None:
            assert "stops because Redis is unavailable" in self.log()
            self._runs.append(self._runs[-1].again())

    def log(self) -> str:
        return self._runs[-1].log()

    def kill(self) -> None:
        for run in self._runs:
            run.kill()


@pytest.fixture
def worker(redis_pair: RedisPair, test_environment: dict[str, str]) -> Iterator[Supervised]:
    made = Supervised("worker", site.DISPATCH_TIMEOUT_QUEUE, env={**test_environment, "REDIS_TIMEOUT_S": "2"})
    yield made
    made.kill()


def test_a_worker_and_its_scheduler_follow_a_failover(redis_pair: RedisPair, worker: Supervised) -> None:
    """A worker that asks for the primary while there is none ends, and its successor continues."""
    queue, leave = site.DISPATCH_TIMEOUT_QUEUE, "tests.core.jobs.leave"

    def leaves(name: str) -> bool:
        worker.keep_running()
        return EventCursor.objects.filter(name=name).exists()

    enqueue(queue, leave, "before")
    wait_until(lambda: leaves("before"), message=worker.log)
    enqueue_in(queue, 3, leave, "scheduled before")
    assert rq_queue(queue).scheduled_job_registry.count == 1
    redis_pair.replicated()
    redis_pair.kill_primary()
    wait_until(works(lambda: client().set(key("after"), "1")))
    enqueue(queue, leave, "after")
    enqueue_in(queue, 3, leave, "scheduled after")
    for name in ("after", "scheduled before", "scheduled after"):
        wait_until(lambda name=name: leaves(name), message=worker.log)


def test_dialers_follow_a_failover_in_the_middle(redis_pair: RedisPair, floor: Floor, sim: Simulator) -> None:
    floor.add_many(COUNT)
    with dispatcher(sim) as process:
        stops_in_the_middle(sim, process)
        redis_pair.kill_primary()
        goes_on(sim)
        wait_until(works(lambda: client().set(key("after"), "1")))
        CircuitBreaker.reset_all()
        everybody_was_called_once(floor, sim, process, COUNT)
        assert process.returncode is None, process.log()
