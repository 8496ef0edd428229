"""What the pages say about a message that waits is true, also if several things hold it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.console.outbox.queries import group_rows
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import DirectRequest, MessageGroup
from dispatch.outbox.services import target_health
from tests.harness.outbox import World
from tests.support.waiting import wait_until


def words_of_group(world: World) -> str:
    (row,) = group_rows(list(MessageGroup.objects.filter(pk=world.group().pk)))
    return row.words


@pytest.mark.parametrize(
    ("why", "reason"),
    [("disabled", "ERP is disabled"), ("paused", "ERP is paused"), ("paused pool", "is paused")],
)
def test_a_held_endpoint_or_pool_is_named_before_the_next_retry(world: World, why: str, reason: str) -> None:
    erp = world.endpoint()
    world.receiver.answer("a", 500)
    message = world.send_one(erp, "a")
    world.start()
    wait_until(lambda: world.message(message).waiting_for == "retry")
    world.stop()
    assert "next retry" in why_stuck(world.message(message))
    assert "will be retried" in words_of_group(world)
    if why == "paused pool":
        DispatchPool.objects.update(is_paused=True)
    else:
        act = target_health.pause_endpoint if why == "paused" else target_health.disable_endpoint
        act(erp.pk, "An outage", actor=SYSTEM)
    words = why_stuck(world.message(message))
    assert reason in words
    assert "next retry" not in words
    due_at = world.message(message).due_at
    assert words.endswith(f"It is not due before {due_at:%Y-%m-%d %H:%M:%S} UTC.")
    assert reason in words_of_group(world)
    world.travel(60)
    assert "not due" not in why_stuck(world.message(message))


def test_the_error_that_blocks_a_message_is_named_while_another_is_in_flight(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("bad", 500)
    world.receiver.hold("passing")
    bad = world.send_one(erp, "bad", mode="NEXT_ON_ERROR")
    world.start()
    world.becomes(bad, "ERROR")
    held = world.send_one(erp, "held", mode="BLOCK_ON_ERROR")
    passing = world.send_one(erp, "passing", mode="NEXT_ON_ERROR")
    world.becomes(passing, "PROCESSING")
    assert f"blocked by the error of message {bad}" in why_stuck(world.message(held))
    world.receiver.let_go("passing")
    world.becomes(passing, "COMPLETED")
    assert f"blocked by the error of message {bad}" in why_stuck(world.message(held))


def test_a_message_names_the_error_that_blocks_it_not_the_first_of_its_group(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("passed", 500)
    world.receiver.answer("bad", 500)
    passed = world.send_one(erp, "passed", mode="NEXT_ON_ERROR")
    world.start()
    world.becomes(passed, "ERROR")
    # In the order before the error of the other mode.
    bad = world.send_one(erp, "bad", mode="BLOCK_ON_ERROR", sequence=1)
    world.becomes(bad, "ERROR")
    first, second = (world.send_one(erp, mode, mode=mode) for mode in ("BLOCK_ON_ERROR", "NEXT_ON_ERROR"))
    for message in (first, second):
        assert f"blocked by the error of message {bad}" in why_stuck(world.message(message))
    world.act("resolve", bad)
    assert f"blocked by the error of message {passed}" in why_stuck(world.message(first))
    world.becomes(second, "COMPLETED")


def test_a_group_is_blocked_since_the_error_whatever_passes_it(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("bad", 500)
    bad = world.send_one(erp, "bad", mode="NEXT_ON_ERROR")
    world.start()
    world.becomes(bad, "ERROR")
    world.send(erp, "held", mode="BLOCK_ON_ERROR")
    failed_at = world.message(bad).ended_at
    for name in ("first", "second"):
        world.travel(60)
        world.becomes(world.send_one(erp, name, mode="NEXT_ON_ERROR"), "COMPLETED")
        wait_until(lambda: world.group().blocked_by == bad)
        assert world.group().blocked_since == failed_at


def test_direct_requests_that_hold_all_slots_are_named_as_the_reason(world: World) -> None:
    DispatchPool.objects.filter(pk=world.pool.pk).update(concurrency=1)
    message = world.send_one(world.endpoint(), "a")
    request = DirectRequest.objects.create(
        organization=world.organization, pool=world.pool, slot=1, lease_until=clock.now() + timedelta(minutes=1)
    )
    world.poll()
    assert world.status(message) == "PENDING"
    assert "All slots of the pool" in why_stuck(world.message(message))
    assert "all slots of the pool" in words_of_group(world)
    DirectRequest.objects.filter(pk=request.pk).update(lease_until=clock.now() - timedelta(seconds=1))
    assert "next poll" in why_stuck(world.message(message))
    assert words_of_group(world) == f"Message {message} is due"
