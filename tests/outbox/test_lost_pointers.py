"""QUEUED messages whose pointer is not on the queue are published again within half a minute, whatever lost it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from dispatch.core import clock, fault_injection
from dispatch.core.runtime.loop_runner import leading
from dispatch.outbox import loops, publisher, queues
from dispatch.outbox.models import Message
from dispatch.outbox.rules.responses import Verdict
from dispatch.outbox.services import attempts
from dispatch.outbox.services.attempt_results import AttemptResult, finish_attempts
from dispatch.outbox.services.attempts import DeliveryAttempt
from tests.core.outages import own_valkey
from tests.harness.outbox import World
from tests.support.processes import environment, running
from tests.support.waiting import wait_until

# Longer than OUTBOX_REPUBLISH_AFTER_S, and within the guaranteed 30 s.
OVERDUE_S = 13.0
ALL = "outbox_poller,outbox_router,outbox_leases,outbox_stale"


def lose_pointers() -> int:
    """Remove every pointer from the queue for good; return how many there were."""
    consumer, lost = queues.consumer("loses them"), 0
    while found := consumer.receive(100, 0.2):
        consumer.ack_many(found)
        lost += len(found)
    return lost


def pointers() -> list[str]:
    """Take what is on the queue; return the pointers' ids, sorted."""
    consumer = queues.consumer("looks")
    found = consumer.receive(100, 0.2)
    consumer.ack_many(found)
    return sorted((queues_id(delivery.pointer_json) for delivery in found), key=int)


def queues_id(pointer_json: str) -> str:
    from dispatch.outbox.pointer import MessagePointer

    return MessagePointer.from_json(pointer_json).id


def test_lost_pointers_do_not_hold_up_the_rest_of_the_pool(world: World) -> None:
    world.pool.concurrency = 5
    world.pool.save()
    lost = [world.send_one(world.endpoint(), f"lost {n}", group=f"{n}") for n in [0]]
    lost += [world.send_one(world.endpoint(f"E{n}"), f"lost {n}", group=f"{n}") for n in range(1, 5)]
    world.poll()
    assert lose_pointers() == 5
    other = world.send_one(world.endpoint("other"), "other")
    world.poll()
    assert world.status(other) == "PENDING"
    world.travel(OVERDUE_S)
    loops.recover_calls()
    world.start()
    world.becomes(other, "COMPLETED")
    world.all_end()
    assert sorted(world.receiver.names) == sorted([*(f"lost {n}" for n in range(5)), "other"])
    assert set(Message.objects.values_list("epoch", flat=True)) == {1}


def test_a_message_is_published_again_after_growing_pauses(world: World) -> None:
    message = world.send_one(world.endpoint(), "a")
    world.poll()
    assert pointers() == [str(message)]
    loops.recover_calls()
    assert pointers() == []
    published = []
    for _ in range(60):
        world.travel(2.0)
        loops.recover_calls()
        published += pointers()
    # Overdue after 12 s, then after 24, 48 and 96 s.
    assert published == [str(message)] * 4
    assert world.status(message) == "QUEUED"


def test_young_pointers_and_running_calls_are_left_alone(world: World) -> None:
    running_call, young = world.send_one(world.endpoint(), "a"), world.send_one(world.endpoint("B"), "b")
    world.poll()
    assert len(pointers()) == 2
    attempts.start_attempts([(running_call, 1)])
    world.travel(8.0)
    loops.recover_calls()
    assert pointers() == []
    world.travel(5.0)
    loops.recover_calls()
    assert pointers() == [str(young)]


def test_a_queue_that_is_behind_is_not_filled_with_duplicates(world: World) -> None:
    world.pool.concurrency = 50
    world.pool.save()
    erp = world.endpoint()
    waiting = world.send(erp, *"abc", mode="IMMEDIATE")
    world.poll()
    world.travel(100.0)
    later = world.send(erp, *"def", mode="IMMEDIATE")
    world.poll()
    pointers()
    world.travel(60.0)
    # The attempts in progress were published 60 s ago: the queue is that far behind.
    attempts.start_attempts([(later[0], 1)])
    loops.recover_calls()
    assert pointers() == [str(message) for message in waiting]
    world.travel(30.0)
    # Nothing started recently: the next ones may be lost.
    loops.recover_calls()
    assert [pointer for pointer in pointers() if int(pointer) in later] == [str(m) for m in later[1:]]


def test_attempts_that_passed_no_queue_do_not_hide_that_it_is_behind(world: World) -> None:
    erp = world.endpoint()
    first, following = world.send(erp, "a", "b")
    waiting = world.send(erp, *"cde", mode="IMMEDIATE")
    world.poll()
    pointers()
    world.travel(60.0)
    started, _ = attempts.start_attempts([(first, 1), (waiting[0], 1)])
    call, now = started[0], clock.now()
    assert isinstance(call, DeliveryAttempt)
    finish_attempts([AttemptResult(call, Verdict("delivered"), now, now, 0.1, 200)], start=True)
    assert world.status(following) == "PROCESSING"
    loops.recover_calls()
    assert pointers() == []


def test_a_new_leader_publishes_what_is_queued_at_once(world: World) -> None:
    message = world.send_one(world.endpoint(), "a")
    with fault_injection.arm_crash_point("outbox.claim.committed"), pytest.raises(fault_injection.Interrupted):
        world.poll()
    assert world.status(message) == "QUEUED"
    assert pointers() == []
    from dispatch.core.runtime.leader_election import Election

    election = Election("loop:outbox_poller", holder="new")
    token = leading.set((election.name, election.step() or 0))
    try:
        world.poll()
        assert pointers() == [str(message)]
        world.poll()
        assert pointers() == []
    finally:
        leading.reset(token)


@pytest.mark.parametrize("point", ["outbox.claim.committed", "outbox.publish.before"])
def test_a_poller_killed_before_publishing_costs_half_a_minute(
    world: World, test_environment: dict[str, str], point: str
) -> None:
    erp = world.endpoint()
    ids = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(12)]
    database = connection.settings_dict["NAME"]
    quick = {"LEADER_LEASE_S": "2", "LEADER_RENEW_S": "0.5", "OUTBOX_POLL_INTERVAL_S": "0.5"}
    fault = environment(database, **quick, DISPATCH_FAULTS=f"{point}=kill")
    with running("dispatcher", "--only", ALL, env=fault) as first:
        assert first.ends() == -9, first.log()
    assert Message.objects.filter(status="QUEUED").count() == 10
    with running("dispatcher", "--only", ALL, env=environment(database, **quick)) as second:
        wait_until(
            lambda: world.statuses(ids) == ["COMPLETED"] * 12,
            message=lambda: f"{world.statuses(ids)}\n{second.log()}",
        )
    assert sorted(world.receiver.names) == sorted(f"{n}" for n in range(12))


def test_a_flush_of_a_separate_queue_server_is_repaired(world: World, tmp_path: Path, settings: object) -> None:
    with own_valkey(tmp_path) as server:
        settings.OUTBOX_QUEUE_URL = server.url  # type: ignore[attr-defined]
        message = world.send_one(world.endpoint(), "a")
        world.poll()
        server.client().flushall()
        world.travel(OVERDUE_S)
        loops.recover_calls()
        world.start_router()
        world.becomes(message, "COMPLETED")
        world.stop()


def test_unavailable_queue_is_retried(world: World, settings: object) -> None:
    message = world.send_one(world.endpoint(), "a")
    world.poll()
    lose_pointers()
    world.travel(OVERDUE_S)
    settings.OUTBOX_QUEUE_URL = "redis://127.0.0.1:1/0"  # type: ignore[attr-defined]
    loops.recover_calls()
    settings.OUTBOX_QUEUE_URL = ""  # type: ignore[attr-defined]
    publisher.reset()
    loops.recover_calls()
    assert pointers() == [str(message)]


def test_stale_recovery_continues_until_nothing_is_left(world: World, settings: object) -> None:
    world.pool.concurrency = 500
    world.pool.save()
    erp = world.endpoint()
    world.send(erp, *(f"{n}" for n in range(250)), mode="IMMEDIATE")
    while Message.objects.filter(status="PENDING").exists():
        world.poll()
    world.travel(901)
    wishes = []
    while (wish := loops.recover_pointers()) is not None:
        wishes.append(wish)
    assert wishes == [0.0, 0.0]
    assert not Message.objects.filter(status="QUEUED").exists()
    assert Message.objects.filter(due_at__lte=clock.now() + timedelta(seconds=1)).count() == 250
