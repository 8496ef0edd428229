"""A locked group or message stops only itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connections, transaction

from dispatch.core import clock
from dispatch.outbox import loops, processor
from dispatch.outbox.models import Attempt, Message, MessageGroup
from dispatch.outbox.rules.responses import DELIVERED, FAILED, Verdict
from dispatch.outbox.services import attempt_results, attempts, recovery, scheduling
from dispatch.outbox.services.attempt_results import AttemptResult
from dispatch.outbox.services.attempts import DeliveryAttempt
from dispatch.outbox.services.intake import NewMessage, accept_messages
from dispatch.outbox.services.scheduling import RequeuedMessage
from tests.core.threads import Elsewhere
from tests.harness.outbox import World
from tests.support.waiting import PATIENCE, wait_until


@contextmanager
def held(model: type[Message] | type[MessageGroup], pk: int) -> Iterator[None]:
    """Lock this row in another connection while the block runs."""
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                model.objects.select_for_update().get(pk=pk)
                locked.set()
                assert done.wait(PATIENCE)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(PATIENCE)
    try:
        yield
    finally:
        done.set()
        holder.join()


def group_of(message_id: int) -> int:
    return Message.objects.values_list("group_id", flat=True).get(pk=message_id)


def test_results_of_other_groups_are_written(world: World) -> None:
    erp = world.endpoint()
    locked, free = world.send_one(erp, "locked", group="a"), world.send_one(erp, "free", group="b")
    world.receiver.hold("locked")
    world.receiver.hold("free")
    world.start()
    world.receiver.count(2)
    with held(MessageGroup, group_of(locked)):
        world.receiver.let_go("locked")
        world.receiver.let_go("free")
        world.becomes(free, "COMPLETED")
        more = world.send_one(erp, "more", group="c")
        world.becomes(more, "COMPLETED")
        assert world.status(locked) == "PROCESSING"
    world.becomes(locked, "COMPLETED")
    assert world.message(locked).calls == 1


def test_the_poller_passes_over_a_message_that_is_held(world: World) -> None:
    erp = world.endpoint()
    locked, free = world.send_one(erp, "locked", group="a"), world.send_one(erp, "free", group="b")
    with held(Message, locked):
        world.poll()
        assert world.statuses([locked, free]) == ["PENDING", "QUEUED"]
    recovery.requeue_missing_groups()
    world.poll()
    assert world.status(locked) == "QUEUED"


def test_recovery_passes_over_groups_that_are_held(world: World, settings: object) -> None:
    settings.OUTBOX_STALE_BATCH = 1  # type: ignore[attr-defined]
    erp = world.endpoint()
    stale = [world.send_one(erp, name, group=name) for name in "ab"]
    world.poll()
    world.travel(901)
    with held(MessageGroup, group_of(stale[0])):
        assert loops.recover_pointers() == 0.0
        assert loops.recover_pointers() is None
        assert world.statuses(stale) == ["QUEUED", "PENDING"]
    loops.recover_pointers()
    assert world.statuses(stale) == ["PENDING", "PENDING"]


def test_lapsed_and_expired_messages_pass_over_what_is_held(world: World) -> None:
    erp = world.endpoint(retry_schedule_s=[])
    lapsed = [world.send_one(erp, name, group=name) for name in "ab"]
    world.poll()
    attempts.start_attempts([(message, 1) for message in lapsed])
    expired = [world.send_one(erp, f"x{n}", group=name, expires_at=clock.now()) for n, name in enumerate("cd")]
    world.travel(61)
    with held(MessageGroup, group_of(lapsed[0])), held(MessageGroup, group_of(expired[0])):
        loops.recover_calls()
        assert world.statuses(lapsed) == ["PROCESSING", "PENDING"]
        assert world.statuses(expired) == ["PENDING", "EXPIRED"]
    loops.recover_calls()
    assert world.statuses(lapsed) == ["PENDING", "PENDING"]
    assert world.statuses(expired) == ["EXPIRED", "EXPIRED"]


def test_putting_back_leaves_what_is_held(world: World) -> None:
    erp = world.endpoint()
    ids = [world.send_one(erp, name, group=name) for name in "ab"]
    world.poll()
    returns = [RequeuedMessage(message, 1, group_of(message), "BLOCK_ON_ERROR") for message in ids]
    with held(MessageGroup, group_of(ids[0])):
        scheduling.requeue(returns)
        assert world.statuses(ids) == ["QUEUED", "PENDING"]


def test_lists_with_the_same_keys_in_another_order_do_not_deadlock(world: World) -> None:
    """Both wait for a third request, whose message is the second of each."""
    erp = world.endpoint(mode="IMMEDIATE")
    answers: list[list[int]] = []

    def send(keys: str) -> None:
        items = [NewMessage("order.changed", "{}", erp, idempotency_key=key) for key in keys]
        answers.append([accepted.id for accepted in accept_messages(world.organization.pk, items)])

    send("B")  # the group exists from now on
    with transaction.atomic():
        send("M")
        both = [Elsewhere(lambda keys=keys: send(keys)) for keys in ("AMZ", "ZMA")]  # type: ignore[misc]
        for one in both:
            one.wait_for_lock()
        transaction.set_rollback(True)
    for one in both:
        one.finish()
    *_, first, second = answers
    assert first == second[::-1]
    assert sorted(Message.objects.values_list("idempotency_key", flat=True)) == ["A", "B", "M", "Z"]


@pytest.mark.parametrize("step", ["start", "end"])
def test_bulk_cancel_and_attempts_in_another_order_do_not_deadlock(world: World, step: str) -> None:
    """Both wait for the second message, which a third session has locked."""
    erp = world.endpoint(mode="IMMEDIATE")
    ids = world.send(erp, "a", "b", "c")
    world.poll()
    others = [(message, 1) for message in reversed(ids)]
    calls = [] if step == "start" else attempts.start_attempts(others)[0]

    def act() -> None:
        if step == "start":
            calls.extend(attempts.start_attempts(others)[0])
        else:
            finish(calls)

    with held(Message, ids[1]):
        attempt = Elsewhere(act)
        attempt.wait_for_lock()
        cancel = Elsewhere(lambda: world.act("cancel", *ids))
        cancel.wait_for_lock()
    attempt.finish()
    cancel.finish()
    assert all(isinstance(call, DeliveryAttempt) for call in calls)
    assert world.statuses(ids) == ["CANCELLED" if step == "start" else "COMPLETED"] * 3


def finish(calls: Sequence[object]) -> None:
    """Record that these attempts delivered their messages."""
    now = clock.now()
    delivered = Verdict(DELIVERED)
    results = [
        AttemptResult(call, delivered, now, now, 0.1, 200) for call in calls if isinstance(call, DeliveryAttempt)
    ]
    attempt_results.finish_attempts(results)


def late_result(world: World) -> AttemptResult:
    """Return the response to an attempt whose lease has lapsed."""
    message = world.send_one(world.endpoint(), "a")
    world.poll()
    (call,), _ = attempts.start_attempts([(message, 1)])
    assert isinstance(call, DeliveryAttempt)
    world.travel(61)
    world.recover()
    now = clock.now()
    verdict = Verdict(FAILED, error_class="http_500", error="The receiver answered 500.")
    return AttemptResult(call, verdict, now, now, 0.1, 500, "Out of stock")


def write(result: AttemptResult) -> None:
    """Record the result as a process does whose lease was lost."""

    async def run() -> None:
        writer = processor.Processor()
        call = result.call
        ticket = processor.Ticket(call.id, call.epoch)
        running = writer._running[call.id, call.epoch] = processor._Running(call, ticket, 0.0)
        try:
            await writer._write_result(running, result)
        finally:
            await writer.close()

    asyncio.run(run())


def test_late_response_is_stored_once_its_message_is_no_longer_locked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, tries = late_result(world), []
    real = processor.finish_attempts

    def counted(*given: object, **options: object) -> object:
        tries.append(given)
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(processor, "finish_attempts", counted)
    with held(Message, result.call.id):
        writer = Elsewhere(lambda: write(result))
        wait_until(lambda: len(tries) > 2)
        assert not Attempt.objects.filter(is_late=True).exists()
    writer.finish()
    late = Attempt.objects.get(message=result.call.id, is_late=True)
    assert (late.status_code, late.answer, late.error) == (500, "Out of stock", "The receiver answered 500.")


def test_late_result_survives_an_error_of_the_database(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    result, errors = late_result(world), [OperationalError("deadlock detected")] * 2
    real = processor.finish_attempts

    def flaky(*given: object, **options: object) -> object:
        if errors:
            raise errors.pop()
        return real(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(processor, "finish_attempts", flaky)
    write(result)
    assert not errors
    assert Attempt.objects.get(message=result.call.id, is_late=True).answer == "Out of stock"


def test_last_try_for_a_late_response_waits_for_no_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "LATE_S", 0.0)
    result = late_result(world)
    with held(Message, result.call.id):
        Elsewhere(lambda: write(result)).finish()
    assert not Attempt.objects.filter(is_late=True).exists()


def test_renewed_lease_of_the_next_attempt_is_not_that_of_a_late_result(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process may run both. The late result would wait for its group as long as the other attempt runs."""
    monkeypatch.setattr(processor, "LATE_S", 0.0)
    result = late_result(world)
    world.travel(6)
    world.poll()
    (following,), _ = attempts.start_attempts([(result.call.id, 2)])
    assert isinstance(following, DeliveryAttempt)

    async def run() -> None:
        writer = processor.Processor()
        late, now = (
            processor._Running(call, processor.Ticket(call.id, call.epoch), 0.0)
            for call in (result.call, following)
        )
        try:
            await writer._renew_leases([late, now])
            assert now.until > 0
            await writer._write_result(late, result)
        finally:
            await writer.close()

    with held(MessageGroup, group_of(result.call.id)):
        Elsewhere(lambda: asyncio.run(run())).finish(timeout=PATIENCE / 4)
    assert not Attempt.objects.filter(is_late=True).exists()
