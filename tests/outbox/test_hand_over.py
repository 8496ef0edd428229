"""Routers process the message that follows one that ended, without a pointer on the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import OperationalError, connection

from dispatch.core import fault_injection
from dispatch.outbox import metrics
from dispatch.outbox.models import Message
from tests.harness.outbox import World
from tests.support.processes import database_url


@contextmanager
def counted_pointers() -> Iterator[dict[str, int]]:
    """Yield a dictionary that has the number of pointers by outcome once the block has ended."""
    before = {outcome: _count(outcome) for outcome in ("published", "handed_over", "failed")}
    counts: dict[str, int] = {}
    yield counts
    counts.update((outcome, _count(outcome) - number) for outcome, number in before.items())


def _count(outcome: str) -> int:
    return int(metrics.published.labels(outcome)._value.get())


def test_only_the_first_message_of_a_group_passes_the_queue(world: World) -> None:
    ids = world.send(world.endpoint(), "a", "b", "c", "d")
    with counted_pointers() as counts:
        world.start()
        world.receiver.got("a", "b", "c", "d")
        world.all_end()
        world.stop()
    assert counts == {"published": 1, "handed_over": 3, "failed": 0}
    assert world.statuses(ids) == ["COMPLETED"] * 4
    assert world.receiver.overlaps() == []


def test_without_the_setting_each_message_passes_the_queue(world: World, settings) -> None:
    settings.OUTBOX_HAND_OVER = False
    world.send(world.endpoint(), "a", "b", "c")
    with counted_pointers() as counts:
        world.start()
        world.receiver.got("a", "b", "c")
        world.all_end()
        world.stop()
    assert counts == {"published": 3, "handed_over": 0, "failed": 0}


def test_messages_for_which_a_router_has_no_room_go_to_the_queue(world: World, settings) -> None:
    settings.OUTBOX_ROUTER_CALLS = 1
    erp = world.endpoint()
    world.receiver.hold("a")
    world.send(erp, "a", group="first")
    world.poll()
    with counted_pointers() as counts:
        world.start(pollers=0)
        world.receiver.count(1)
        for name in "bcd":  # the end of "a" claims all of them
            world.send(erp, name, group=name)
        world.receiver.let_go("a")
        world.receiver.count(4)
        world.all_end()
        world.stop()
    assert counts["published"] >= 2
    assert counts["handed_over"] + counts["published"] == 3
    assert world.receiver.most_open == 1


def test_a_router_that_stops_leaves_the_next_message_on_the_queue(world: World) -> None:
    world.receiver.answer("a", after_s=3)
    first, second = world.send(world.endpoint(), "a", "b")
    world.start()
    world.receiver.count(1)
    world.stop()
    assert (world.status(first), world.status(second)) == ("COMPLETED", "QUEUED")
    world.start(pollers=0)
    world.receiver.got("a", "b")
    world.all_end()


def test_the_next_attempt_starts_in_the_transaction_that_ends_the_last(world: World) -> None:
    starts = []
    ids = world.send(world.endpoint(), "a", "b", "c")
    with fault_injection.arm_crash_point("outbox.start.before_commit", lambda: starts.append(1)):
        world.start()
        world.receiver.got("a", "b", "c")
        world.all_end()
        world.stop()
    assert len(starts) == 1
    first, *others = [world.told(message) for message in ids]
    assert first == ["created", "queued", "processing", "completed"]
    assert others == [["created", "processing", "completed"]] * 2
    assert not Message.objects.exclude(pool_slot=None).exists()


def test_results_are_recorded_if_the_next_attempt_cannot_start_with_them(world: World) -> None:
    world.send(world.endpoint(), "a", "b", "c")
    with (
        counted_pointers() as counts,
        fault_injection.arm_crash_point("outbox.begin.before_commit", lose_connection),
    ):
        world.start()
        world.receiver.got("a", "b", "c")
        world.all_end()
        world.stop()
    assert counts == {"published": 1, "handed_over": 2, "failed": 0}


def test_a_message_whose_attempt_cannot_start_goes_to_the_queue(world: World) -> None:
    starts = []

    def fail_second() -> None:
        starts.append(len(starts))
        if len(starts) == 2:
            lose_connection()

    world.send(world.endpoint(), "a", "b")
    with (
        counted_pointers() as counts,
        fault_injection.arm_crash_point("outbox.begin.before_commit", lose_connection),
        fault_injection.arm_crash_point("outbox.start.before_commit", fail_second),
    ):
        world.start()
        world.receiver.got("a", "b")
        world.all_end()
        world.stop()
    assert counts == {"published": 2, "handed_over": 1, "failed": 0}


def lose_connection() -> None:
    raise OperationalError("the connection was closed")


def test_a_locked_pool_delays_neither_a_result_nor_the_next_attempt(world: World) -> None:
    ids = world.send(world.endpoint(), "a", "b")
    world.receiver.hold("a")
    world.start()
    world.receiver.count(1)
    with psycopg.connect(database_url(str(connection.settings_dict["NAME"]))) as other:
        other.execute("SELECT FROM outbox_poolgate WHERE pool_id = %s FOR UPDATE", [world.pool.pk])
        world.receiver.let_go("a")
        world.receiver.got("a", "b")
        world.all_end()
        assert world.statuses(ids) == ["COMPLETED"] * 2


def test_the_next_attempt_takes_the_slot_of_the_last_only_within_the_concurrency(world: World) -> None:
    erp = world.endpoint()
    for group in "klm":
        world.send(erp, f"{group}1", f"{group}2", group=group)
        world.receiver.hold(f"{group}1")
    world.start()
    world.receiver.count(3)
    world.pool.concurrency = 1
    world.pool.save()
    for group in "klm":
        world.receiver.let_go(f"{group}1")
    world.receiver.count(6)
    world.all_end()
    world.stop()
    assert world.receiver.overlaps() == []
    assert not Message.objects.exclude(pool_slot=None).exists()


def test_a_pool_with_a_rate_gives_each_message_its_token(world: World) -> None:
    world.pool.rate_per_minute = 6000
    world.pool.save()
    ids = world.send(world.endpoint(), "a", "b", "c")
    world.start()
    world.receiver.got("a", "b", "c")
    world.all_end()
    world.stop()
    assert [world.told(message) for message in ids] == [["created", "queued", "processing", "completed"]] * 3


def test_shares_of_ended_attempts_pass_to_the_next_and_are_returned(world: World, settings) -> None:
    settings.OUTBOX_ROUTER_CALLS = 4  # an organization has two shares
    erp = world.endpoint()
    for group in "klmn":
        world.send(erp, *(f"{group}{nth}" for nth in range(5)), group=group)
    world.start()
    world.receiver.count(20)
    world.all_end()
    world.stop()
    assert world.receiver.most_open <= 2
    assert world.receiver.overlaps() == []
    for group in "klmn":
        assert world.receiver.of(group) == [f"{group}{nth}" for nth in range(5)]


def test_a_message_that_was_canceled_is_not_handed_over(world: World) -> None:
    _, second, _ = world.send(world.endpoint(), "a", "b", "c")
    world.receiver.hold("a")
    world.start()
    world.receiver.count(1)
    world.act("cancel", second)
    world.receiver.let_go("a")
    world.receiver.got("a", "c")
    world.all_end()
