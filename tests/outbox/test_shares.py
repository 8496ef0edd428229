"""Router and poller are divided among organizations: slow receivers of one delay no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.http import client
from dispatch.core.redis import client as redis
from dispatch.outbox import processor, publisher
from dispatch.outbox.models import Attempt, Endpoint, Message, Target
from dispatch.outbox.services import recovery
from dispatch.outbox.services.attempts import PointerRefused
from dispatch.outbox.services.intake import default_pool
from dispatch.outbox.services.scheduling import claim_next
from tests.harness.outbox import World
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def other(world: World) -> Endpoint:
    """An endpoint of another organization, at the same receiver."""
    organization = factories.organization("Desert Plumbing")
    return world.endpoint("Other", organization=organization, pool=default_pool(organization.pk))


def test_slow_receivers_of_one_organization_do_not_hold_the_router(
    world: World, other: Endpoint, settings: Any
) -> None:
    settings.OUTBOX_ROUTER_CALLS = 4
    DispatchPool.objects.update(concurrency=100)
    slow = world.endpoint("Slow", timeout_s=30)
    names = [f"slow {n}" for n in range(12)]
    for name in names:
        world.receiver.hold(name)
        world.send(slow, name, group=name)
    world.start()
    world.receiver.count(2)
    ours = world.send_one(other, "ours")
    world.becomes(ours, "COMPLETED")
    assert len([name for name in world.receiver.names if name in names]) == 2  # half of the router
    for name in names:
        world.receiver.let_go(name)
    world.all_end()
    assert sorted(world.receiver.names) == sorted([*names, "ours"])


def test_what_waits_for_a_share_is_not_published_again(world: World, settings: Any, monkeypatch: Any) -> None:
    settings.OUTBOX_ROUTER_CALLS = 2
    monkeypatch.setattr(processor, "HOLD_RENEWAL_S", 0.2)
    slow = world.endpoint("Slow", timeout_s=30)
    world.receiver.hold("first")
    world.send(slow, "first", group="a")
    world.start()
    world.receiver.got("first")
    waiting = world.send_one(slow, "waiting", group="b")
    wait_until(lambda: world.message(waiting).held_until is not None)
    now = clock.now()
    Message.objects.filter(pk=waiting).update(queued_at=now - timedelta(hours=1))
    assert publisher.publish_overdue() == 0
    assert recovery.recover_stale() == 0
    Message.objects.filter(pk=waiting).update(queued_at=now)
    publisher.publish_again()  # a copy, as after a failover
    stream, delayed = redis.key("outbox", "pointers"), redis.key("outbox", "delayed")
    wait_until(lambda: redis.client().zcard(delayed) > 0, message="the copy was acknowledged")
    assert world.status(waiting) == "QUEUED"
    assert redis.client().xlen(stream) > 0
    world.receiver.let_go("first")
    world.all_end()
    assert world.receiver.names == ["first", "waiting"]


def test_what_waits_for_a_share_keeps_its_order_and_ends_with_the_router(world: World, settings: Any) -> None:
    settings.OUTBOX_ROUTER_CALLS = 2
    slow = world.endpoint("Slow", timeout_s=30)
    world.receiver.hold("first")
    first = world.send_one(slow, "first", group="a")
    world.start()
    world.receiver.got("first")
    ids = world.send(slow, "b1", "b2", "b3", group="b")
    world.receiver.let_go("first")
    world.all_end()
    assert world.statuses([first, *ids]) == ["COMPLETED"] * 4
    assert world.receiver.of("b") == ["b1", "b2", "b3"]


def test_copy_ahead_of_the_pointer_that_got_a_share_does_not_take_its_attempt(world: World) -> None:
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    world.poll()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def process() -> list[PointerRefused | BaseException | None]:
        found = processor.Processor(2)  # an organization alone has one share of two
        shares, starts, gate = found._shares, found._starts, threading.Event()
        assert shares
        assert shares.try_take(erp.organization_id)
        waiting = asyncio.create_task(found.process_epoch(message, 1))
        await until(lambda: found.waiting == 1)
        found._start_thread.start(gate.wait)
        busy = asyncio.create_task(found.process_epoch(0, 1))
        await until(lambda: not starts._idle and not starts.waiting)
        copy = asyncio.create_task(found.process_epoch(message, 1))
        await until(lambda: starts.waiting == 1)
        shares.release(erp.organization_id)
        await until(lambda: starts.waiting == 2)
        gate.set()
        results = await asyncio.gather(waiting, copy, busy, return_exceptions=True)
        assert shares.try_take(erp.organization_id), "every share was returned"
        await found.close()
        return results

    assert asyncio.run(process()) == [None, PointerRefused.OVER, PointerRefused.UNKNOWN]
    assert world.status(message) == "COMPLETED"
    assert world.receiver.names == ["a"]


def test_a_batch_is_divided_among_organizations(world: World, other: Endpoint) -> None:
    DispatchPool.objects.update(concurrency=1000)
    for n in range(30):
        endpoint = world.endpoint(f"Many {n}")
        world.send(endpoint, "a", "b", mode="IMMEDIATE")
    clock.travel(1)
    ours = set(world.send(other, *map(str, range(12)), mode="IMMEDIATE"))
    claims, _ = claim_next(clock.now(), limit=20)
    assert len([claim for claim in claims if claim.id in ours]) == 10


def test_a_name_that_was_not_looked_up_spends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*given: Any, **named: Any) -> client.Response:
        raise client.LookupDelayed("not looked up", sent=False)

    erp = world.endpoint()
    message_id = world.send_one(erp, "a")
    with monkeypatch.context() as patched:
        patched.setattr("dispatch.outbox.http_delivery.client.post", busy)
        world.start()
        wait_until(lambda: world.message(message_id).waiting_for == "lookup")
        assert set(Attempt.objects.values_list("outcome", "is_spent")) == {("deferred", False)}
        assert world.message(message_id).attempts == 0
        target = Target.objects.get(endpoint=erp)
        assert (target.failures, target.failing_since, target.deferring_since) == (0, None, None)
    world.travel(6)
    world.becomes(message_id, "COMPLETED")
