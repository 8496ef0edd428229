"""Contract 1 to 3 (docs/guides/outbox.md): order, one in flight, and what an error blocks."""

from __future__ import annotations

import random

import pytest
from django.db import IntegrityError

from dispatch.outbox.models import Message, MessageGroup
from tests.harness.outbox import World

BLOCK, NEXT, IMMEDIATE = "BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"


def test_group_is_ordered_by_sequence_then_acceptance(world: World) -> None:
    # Contract 1
    erp = world.endpoint()
    world.send(erp, "c", "d")
    world.send(erp, "b", sequence=50)
    world.send(erp, "e", sequence=100)
    world.send(erp, "a", sequence=-1)
    world.start()
    world.receiver.got("a", "b", "c", "d", "e")
    world.all_end()
    assert world.receiver.overlaps() == []


def test_a_machine_whose_clock_is_ahead_does_not_change_the_order(world: World) -> None:
    # Contract 1
    erp = world.endpoint()
    world.travel(0.2)
    world.send(erp, "a")
    world.travel(-0.2)
    world.send(erp, "b")
    world.start()
    world.receiver.got("a", "b")
    world.all_end()


def test_later_lower_sequence_overtakes_waiting_but_not_in_flight(
    world: World,
) -> None:
    # Contract 1
    erp = world.endpoint()
    world.receiver.hold("first")
    world.send(erp, "first", "last")
    world.start()
    world.receiver.got("first")
    world.send(erp, "urgent", sequence=1)
    world.receiver.let_go("first")
    world.receiver.got("first", "urgent", "last")
    world.all_end()
    assert world.receiver.overlaps() == []


def test_group_key_treats_null_empty_and_default_as_the_same_group(
    world: World,
) -> None:
    # Contract 1
    erp, crm = world.endpoint("ERP"), world.endpoint("CRM")
    for group in (None, "", "default", "other"):
        world.send(erp, f"erp {group}", group=group)
        world.send(crm, f"crm {group}", group=group)
        world.send(None, f"direct {group}", group=group)
    keys = set(MessageGroup.objects.values_list("endpoint__name", "name"))
    assert keys == {(n, g) for n in ("ERP", "CRM", None) for g in ("default", "other")}
    assert len(set(MessageGroup.objects.values_list("key", flat=True))) == 6


def test_group_of_direct_messages_keeps_order_over_several_urls(world: World) -> None:
    # Contract 1
    world.send(None, "a", url=world.receiver.url + "/created")
    world.send(None, "b", url=world.receiver.url.replace("127.0.0.1", "localhost") + "/updated")
    world.send(None, "c", url=world.receiver.url + "/closed")
    world.start()
    world.receiver.got("a", "b", "c")
    assert [visit.path for visit in world.receiver.visits] == ["/hook/created", "/hook/updated", "/hook/closed"]


def test_direct_messages_without_a_group_do_not_block_other_hosts(world: World) -> None:
    # Contract 1
    elsewhere = world.receiver.url.replace("127.0.0.1", "localhost")
    world.receiver.answer("refused", 400)
    refused = world.send_one(None, "refused", group=None)
    behind = world.send_one(None, "behind", group="default")
    other = world.send_one(None, "other", group=None, url=elsewhere)
    world.start()
    world.becomes(refused, "ERROR")
    world.becomes(other, "COMPLETED")
    assert world.status(behind) == "PENDING"
    assert world.message(behind).group_id == world.message(refused).group_id


def test_one_in_flight_per_group_with_three_pollers_and_three_routers(world: World) -> None:
    # Contract 2
    endpoints = [world.endpoint(f"E{n}") for n in range(3)]
    world.pool.concurrency = 40
    world.pool.save()
    expected: dict[str, list[str]] = {}
    for number in range(30):
        group = f"group-{number}"
        names = [f"{number}-{n}" for n in range(8)]
        world.send(endpoints[number % 3], *names, group=group)
        expected[group] = names
    chance = random.Random(6)
    for names in expected.values():
        world.receiver.answer(chance.choice(names), after_s=chance.uniform(0, 0.05))
    world.start(pollers=3, routers=3)
    world.all_end()
    assert {group: world.receiver.of(group) for group in expected} == expected
    assert world.receiver.overlaps() == []
    assert len(world.receiver.visits) == 240


def test_index_refuses_a_second_ordered_message_in_flight(world: World) -> None:
    # Contract 2
    erp = world.endpoint()
    first, second = world.send(erp, "a", "b")
    world.poll()
    assert world.statuses([first, second]) == ["QUEUED", "PENDING"]
    with pytest.raises(IntegrityError, match="one_in_flight_per_group"):
        Message.objects.filter(pk=second).update(status="QUEUED", in_flight=True)


def test_ending_a_message_claims_and_publishes_the_next_without_a_poll(world: World) -> None:
    # Contract 2
    erp = world.endpoint()
    world.send(erp, *"abcdefgh")
    world.start_router()
    world.poll()  # the only one
    world.receiver.got(*"abcdefgh")
    world.all_end()


def test_head_waiting_for_its_retry_holds_its_group(world: World) -> None:
    # Contract 3
    erp = world.endpoint(retry_schedule_s=[600])
    world.receiver.answer("a", 500, times=1)
    a, b = world.send(erp, "a", "b")
    world.send(erp, "elsewhere", group="h")
    world.start()
    world.receiver.count(2)
    world.rests()
    assert world.statuses([a, b]) == ["PENDING", "PENDING"]
    assert sorted(world.receiver.names) == ["a", "elsewhere"]
    world.travel(601)
    world.all_end()
    assert world.receiver.of("g") == ["a", "a", "b"]


def test_block_on_error_stops_later_messages_until_resolved(world: World) -> None:
    # Contract 3
    erp = world.endpoint(mode=BLOCK)
    world.receiver.answer("bad", 422)
    bad, *later = world.send(erp, "bad", "b", "c")
    other = world.send_one(erp, "other", group="h")
    world.start()
    world.becomes(bad, "ERROR")
    world.becomes(other, "COMPLETED")
    world.send(erp, "earlier", sequence=1)
    world.receiver.count(3)
    world.rests()
    assert world.statuses(later) == ["PENDING", "PENDING"]
    assert world.receiver.of("g") == ["bad", "earlier"]
    assert world.group().blocked_by == bad
    world.act("resolve", bad)
    world.all_end()
    assert world.receiver.of("g") == ["bad", "earlier", "b", "c"]
    assert world.group().blocked_by is None


def test_next_on_error_continues_after_an_error(world: World) -> None:
    # Contract 3
    erp = world.endpoint(mode=NEXT)
    world.receiver.answer("bad", 422)
    bad, *_ = world.send(erp, "bad", "b", "c")
    world.start()
    world.receiver.got("bad", "b", "c")
    world.all_end()
    assert world.status(bad) == "ERROR"


def test_immediate_has_no_order_never_blocks_and_is_never_blocked(world: World) -> None:
    # Contract 3
    erp = world.endpoint()
    world.receiver.hold("slow")
    world.receiver.answer("bad", 422)
    bad = world.send_one(erp, "bad", mode=IMMEDIATE)
    world.send(erp, "slow")
    blocked = world.send_one(erp, "after slow")
    world.start()
    world.becomes(bad, "ERROR")
    world.send(erp, *[f"now {n}" for n in range(5)], mode=IMMEDIATE)
    world.receiver.count(7)
    assert world.status(blocked) == "PENDING"
    world.receiver.let_go("slow")
    world.all_end()
    assert world.receiver.names[-1] == "after slow"


def test_mixed_group_holds_block_by_any_error_and_next_by_block_errors(
    world: World,
) -> None:
    # Contract 3
    erp = world.endpoint()
    for bad in ("next bad", "block bad"):
        world.receiver.answer(bad, 422)
    first = world.send_one(erp, "next bad", mode=NEXT, sequence=1)
    held = world.send_one(erp, "block held", mode=BLOCK, sequence=2)
    passing = world.send_one(erp, "next goes", mode=NEXT, sequence=3)
    world.start()
    world.becomes(passing, "COMPLETED")
    assert world.statuses([first, held]) == ["ERROR", "PENDING"]
    world.act("ignore", first)
    world.becomes(held, "COMPLETED")

    second = world.send_one(erp, "block bad", mode=BLOCK, sequence=4)
    world.becomes(second, "ERROR")
    waiting = world.send_one(erp, "next held", mode=NEXT, sequence=5)
    immediate = world.send_one(erp, "now", mode=IMMEDIATE, sequence=6)
    world.becomes(immediate, "COMPLETED")
    world.rests()
    assert world.status(waiting) == "PENDING"
    assert world.group().blocked_by == second
    world.act("resolve", second)
    world.becomes(waiting, "COMPLETED")
