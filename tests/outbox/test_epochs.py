"""Contract 2, 9, 10, 12 and 13 (docs/guides/outbox.md): epochs, stale recovery, leases, tokens, poison."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.db import IntegrityError
from django.test import AsyncRequestFactory
from prometheus_client import REGISTRY

from dispatch.core import clock
from dispatch.core.redis.client import client
from dispatch.outbox import loops, processor, queues
from dispatch.outbox import publisher as outbox_publisher
from dispatch.outbox.api.process import process
from dispatch.outbox.checks import contradictions
from dispatch.outbox.models import Attempt, Message, QuarantinedPointer
from dispatch.outbox.pointer import MessagePointer, make_token
from dispatch.outbox.queues.redis_streams import delayed_key, stream_key
from dispatch.outbox.services import attempt_results, attempts, recovery, scheduling
from dispatch.outbox.services.attempts import DeliveryAttempt, PointerRefused
from tests.harness.outbox import World
from tests.support.waiting import wait_until


def queued(world: World) -> list[MessagePointer]:
    """Return what is on the queue, without removing it."""
    found = queues.consumer("looking").receive(100, 0.5)
    for delivery in found:
        delivery.release(0)
    return [MessagePointer.from_json(delivery.pointer_json) for delivery in found]


def pointers_left() -> int:
    """Return how many pointers are on the queue, including those that routers hold."""
    return int(client().xlen(stream_key()) + client().zcard(delayed_key()))


def begin(message_id: int, epoch: int) -> DeliveryAttempt | PointerRefused:
    return attempts.start_attempts([(message_id, epoch)])[0][0]


def test_duplicate_pointers_of_one_epoch_deliver_once(world: World) -> None:
    # Contract 9
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    world.poll()
    (pointer,) = queued(world)
    publisher = outbox_publisher._publisher()
    for n in range(20):
        publisher.publish(pointer, f"again-{n}")
    world.start(pollers=0, routers=3)
    world.becomes(message, "COMPLETED")
    wait_until(lambda: pointers_left() == 0)
    assert world.receiver.names == ["a"]
    assert Attempt.objects.count() == 1


def test_retry_has_a_new_epoch_and_passes_the_queues_deduplication(world: World) -> None:
    # Contract 9
    erp = world.endpoint(retry_schedule_s=[0, 0, 0])
    world.receiver.answer("a", 500, times=3)
    message = world.send_one(erp, "a")
    world.start()
    found = world.becomes(message, "COMPLETED")
    assert (found.epoch, found.calls) == (4, 4)
    assert [a.epoch for a in Attempt.objects.filter(message=message)] == [1, 2, 3, 4]
    assert len({visit.headers["webhook-id"] for visit in world.receiver.visits}) == 1


def test_late_result_of_an_older_epoch_is_recorded_without_effect(world: World) -> None:
    # Contract 9
    erp = world.endpoint()
    message, _ = world.send(erp, "a", "b")
    world.poll()
    old = begin(message, 1)
    assert isinstance(old, DeliveryAttempt)
    world.travel(61)
    world.recover()
    world.travel(6)
    world.poll()
    new = begin(message, 2)
    assert isinstance(new, DeliveryAttempt)
    now = clock.now()
    result = attempt_results.AttemptResult(old, attempt_results.Verdict("delivered"), now, now, 0.1, 200)
    attempt_results.finish_attempts([result])
    assert world.status(message) == "PROCESSING"
    late = Attempt.objects.get(message=message, outcome="delivered")
    assert (late.epoch, late.is_late, late.is_spent) == (1, True, False)
    attempt_results.finish_attempts([replace(result, call=new)])
    assert world.status(message) == "COMPLETED"


def test_late_results_and_time_on_the_queue_are_counted(world: World) -> None:
    # Contract 9
    def figure(name: str) -> float:
        return REGISTRY.get_sample_value(f"dispatch_outbox_{name}") or 0.0

    before = {name: figure(name) for name in ("late_total", "delivery_seconds_count", "delivery_seconds_sum")}
    message = world.send_one(world.endpoint(), "a")
    world.poll()
    world.travel(3)
    call, now = begin(message, 1), clock.now()
    assert isinstance(call, DeliveryAttempt)
    result = attempt_results.AttemptResult(call, attempt_results.Verdict("delivered"), now, now, 0.1, 200)
    late = replace(result, started_at=now + timedelta(seconds=1))
    for each in (result, late, late):  # the last again, since the reply to its commit was lost
        attempt_results.finish_attempts([each])
    assert figure("late_total") - before["late_total"] == 1
    assert figure("delivery_seconds_count") - before["delivery_seconds_count"] == 1
    assert 3 <= figure("delivery_seconds_sum") - before["delivery_seconds_sum"] < 60


def test_index_refuses_a_wrong_claim_and_the_right_message_follows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Contract 2
    a, b, c = world.send(world.endpoint(), "a", "b", "c")
    world.poll()
    call, now, chosen = begin(a, 1), clock.now(), scheduling._choose
    assert isinstance(call, DeliveryAttempt)

    def two_of_a_group(*args: Any) -> Any:
        found, groups = chosen(*args)
        return [*found, (c, call.target_id)], groups

    monkeypatch.setattr(scheduling, "_choose", two_of_a_group)
    with pytest.raises(IntegrityError, match="one_in_flight_per_group"):
        attempt_results.finish_attempts(
            [attempt_results.AttemptResult(call, attempt_results.Verdict("delivered"), now, now, 0.1, 200)]
        )
    assert world.statuses([a, b, c]) == ["PROCESSING", "PENDING", "PENDING"]
    processor.Processor()._finish_attempts(
        [attempt_results.AttemptResult(call, attempt_results.Verdict("delivered"), now, now, 0.1, 200)]
    )
    assert world.statuses([a, b, c]) == ["COMPLETED", "PENDING", "PENDING"]
    monkeypatch.undo()
    world.start()
    world.all_end()
    assert world.receiver.names == ["b", "c"]


def test_stale_queued_messages_return_to_pending_100_at_a_time(world: World, settings: object) -> None:
    # Contract 10
    world.pool.concurrency = 500
    world.pool.save()
    erp = world.endpoint()
    ids = [world.send_one(erp, f"{n}", mode="IMMEDIATE") for n in range(120)]
    world.poll()
    consumer = queues.consumer("loses them")
    while lost := consumer.receive(100, 0.2):
        consumer.ack_many(lost)
    world.travel(700)
    assert recovery.recover_stale() == 0
    world.travel(201)
    assert recovery.recover_stale() == 100
    assert recovery.recover_stale() == 20
    assert set(Message.objects.filter(pk__in=ids).values_list("status", "attempts")) == {("PENDING", 0)}
    world.start()
    world.all_end()
    assert len(world.receiver.visits) == 120


def test_processing_returns_when_its_lease_ends_unless_renewed(world: World) -> None:
    # Contract 10
    erp = world.endpoint()
    message, after = world.send(erp, "a", "b")
    world.poll()
    call = begin(message, 1)
    assert isinstance(call, DeliveryAttempt)
    for _ in range(4):
        world.travel(40)
        assert attempts.renew_leases([call]) != {}
        world.recover()
        assert world.status(message) == "PROCESSING"
    world.travel(30)
    world.recover()
    assert world.status(message) == "PROCESSING"
    world.travel(31)
    world.recover()
    assert world.statuses([message, after]) == ["PENDING", "PENDING"]
    assert attempts.renew_leases([call]) == {}
    assert world.message(message).attempts == 0
    world.travel(6)
    world.start()
    world.receiver.got("a", "b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"OUTBOX_LEASE_S": 30.0, "OUTBOX_MAX_TIMEOUT_S": 30.0},
        {"OUTBOX_STALE_AFTER_S": 3.0},
        {"OUTBOX_REPUBLISH_AFTER_S": 0.5},
        {"OUTBOX_REPUBLISH_AFTER_S": 900.0},
        {"OUTBOX_STALE_AFTER_S": 50.0, "OUTBOX_STALE_INTERVAL_S": 60.0},
        {"OUTBOX_BATCH_SIZE": 5},
        {"OUTBOX_GROUPS_AT_ONCE": 0},
        {"OUTBOX_POLL_INTERVAL_S": 0.0},
        {"OUTBOX_VISIBILITY_S": 10.0},
        {"OUTBOX_RETRY_SCHEDULE_S": [-1]},
    ],
)
def test_contradictory_thresholds_are_refused_at_startup(wrong: dict, settings: object) -> None:
    # Contract 10
    assert contradictions() == []
    for name, value in wrong.items():
        setattr(settings, name, value)
    assert len(contradictions()) >= 1


Spoil = Callable[[MessagePointer, int], str]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pointer, other: "",
        lambda pointer, other: "nonsense",
        lambda pointer, other: pointer.authToken[:-2] + ("AA" if pointer.authToken[-2:] != "AA" else "BB"),
        lambda pointer, other: pointer.authToken.replace("1.", "2.", 1),
        lambda pointer, other: make_token(other, 1, clock.now() + timedelta(hours=1)),
        lambda pointer, other: make_token(pointer.id, 1, clock.now() - timedelta(seconds=5)),
    ],
    ids=["none", "wrong", "altered", "other epoch", "another message's", "expired"],
)
def test_invalid_token_is_a_401_without_attempt_or_change(world: World, app_url: str, spoil: Spoil) -> None:
    # Contract 12
    erp = world.endpoint()
    message, other = world.send(erp, "a", "b")
    world.poll()
    (pointer,) = queued(world)
    body = {**pointer.__dict__, "authToken": spoil(pointer, other)}
    answer = requests.post(f"{app_url}/api/v1/dispatch/process/", json=body, timeout=60)
    assert answer.status_code == 401
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert world.statuses([message, other]) == ["QUEUED", "PENDING"]
    assert world.receiver.names == []
    assert Attempt.objects.count() == 0


def test_tokens_of_the_previous_key_are_valid_during_key_rotation(world: World, settings: object) -> None:
    # Contract 12
    settings.OUTBOX_TOKEN_KEYS = ["old key"]  # type: ignore[attr-defined]
    erp = world.endpoint()
    first = world.send_one(erp, "a", group="a")
    world.poll()
    settings.OUTBOX_TOKEN_KEYS = ["new key", "old key"]  # type: ignore[attr-defined]
    second = world.send_one(erp, "b", group="b")
    world.start()
    world.becomes(first, "COMPLETED")
    world.becomes(second, "COMPLETED")


def test_external_router_needs_only_an_http_client(world: World, app_url: str) -> None:
    erp = world.endpoint(retry_schedule_s=[0])
    world.receiver.answer("b", 500, times=1)
    ids = world.send(erp, "a", "b", "c")
    world.start_poller()
    consumer = queues.consumer("theirs")

    def route() -> bool:
        for delivery in consumer.receive(10, 0.2):
            body = delivery.pointer_json
            target = MessagePointer.from_json(body).mediationTarget
            answer = requests.post(target, data=body, headers={"Content-Type": "application/json"}, timeout=60)
            said = answer.json()
            assert answer.status_code == 200, said
            if said["ack"]:
                delivery.ack()
            else:
                delivery.release(said["delaySeconds"])
        return world.statuses(ids) == ["COMPLETED"] * 3

    wait_until(route)
    assert world.receiver.names == ["a", "b", "b", "c"]
    assert world.receiver.overlaps() == []


def test_a_router_that_hangs_up_during_the_call_loses_nothing(world: World) -> None:
    erp = world.endpoint()
    world.receiver.hold("a")
    message = world.send_one(erp, "a")
    world.poll()
    (pointer,) = queued(world)
    request = AsyncRequestFactory().post("/", data=pointer.to_json(), content_type="application/json")

    async def hang_up() -> None:
        asked = asyncio.create_task(process(request))
        await asyncio.to_thread(world.receiver.got, "a")
        asked.cancel()  # as the server does when the connection is gone
        with pytest.raises(asyncio.CancelledError):
            await asked
        world.receiver.let_go("a")
        await asyncio.to_thread(world.becomes, message, "COMPLETED")
        await processor.close_processor()

    asyncio.run(hang_up())
    assert world.receiver.names == ["a"]
    assert Attempt.objects.get(message=message).outcome == "delivered"


def test_disabled_outbox_claims_and_delivers_nothing(world: World, settings: object) -> None:
    erp = world.endpoint()
    first, gone, next_one = (
        world.send_one(erp, "first", group="a"),
        world.send_one(erp, "gone", group="b", expires_at=clock.now() + timedelta(seconds=60)),
        world.send_one(erp, "next", group="b"),
    )
    world.pool.concurrency = 1
    world.pool.save()
    world.poll()
    (pointer,) = queued(world)
    settings.OUTBOX_ENABLED = False  # type: ignore[attr-defined]
    request = AsyncRequestFactory().post("/", data=pointer.to_json(), content_type="application/json")
    answer = asyncio.run(process(request))  # type: ignore[arg-type]
    assert json.loads(answer.content) == {"ack": False, "delaySeconds": 60}
    world.pool.concurrency = 10
    world.pool.save()
    world.travel(61)
    loops.recover_calls()
    assert world.statuses([first, gone, next_one]) == ["QUEUED", "PENDING", "PENDING"]
    settings.OUTBOX_ENABLED = True  # type: ignore[attr-defined]
    world.start()
    world.start_recovery()
    world.all_end()
    assert world.statuses([first, gone, next_one]) == ["COMPLETED", "EXPIRED", "COMPLETED"]


def test_processing_endpoint_rejects_invalid_pointers(app_url: str) -> None:
    address = f"{app_url}/api/v1/dispatch/process/"
    for body in (b"", b"[]", b"{", b'{"id": 5}', b'{"id": "x"}', b'{"id": "' + b"9" * 40 + b'"}'):
        assert requests.post(address, data=body, timeout=60).status_code == 400
    assert requests.get(address, timeout=60).status_code == 405


def test_poison_is_quarantined_acknowledged_visible_and_blocks_no_group(world: World) -> None:
    # Contract 13
    erp = world.endpoint()
    good = world.send_one(erp, "a")
    world.poll()
    (pointer,) = queued(world)
    unknown = replace(
        pointer, id="999999999", authToken=make_token(999999999, 1, clock.now() + timedelta(hours=1))
    )
    forged = replace(pointer, authToken="1.99999999999.forged")
    for content in ("\x00 not json", "{}", unknown.to_json(), forged.to_json()):
        client().xadd(stream_key(), {"pointer": content.encode()})
    world.start()
    world.becomes(good, "COMPLETED")
    wait_until(lambda: QuarantinedPointer.objects.count() == 4)
    wait_until(lambda: client().xlen(stream_key()) == 0, message="something is not acknowledged")
    world.stop()
    reasons = list(QuarantinedPointer.objects.values_list("reason", flat=True))
    assert any("JSON" in reason for reason in reasons)
    assert any("no message has this id" in reason for reason in reasons)
    assert any("token" in reason for reason in reasons)
    assert world.receiver.names == ["a"]
