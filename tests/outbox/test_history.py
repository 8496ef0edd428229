"""Check that the event log of real messages is accepted, and that a broken order is refused."""

from __future__ import annotations

from dispatch.core import events
from dispatch.core.events import history
from dispatch.outbox.models import Message
from tests.harness.outbox import World
from tests.support.histories import history_is_legal, undone


def test_histories_of_messages_are_accepted(world: World) -> None:
    endpoint = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("a", 500, times=1)
    first, second, third = world.send(endpoint, "a", "b", "c")
    world.start()
    world.becomes(first, "ERROR")
    world.act("cancel", second)
    world.act("retry", first)
    world.becomes(first, "COMPLETED")
    world.becomes(third, "COMPLETED")
    world.stop()
    assert history_is_legal().subjects == 3


def test_messages_out_of_order_are_refused(world: World) -> None:
    endpoint = world.endpoint(mode="BLOCK_ON_ERROR")
    first, second, third = world.send(endpoint, "a", "b", "c")
    group = world.message(first).group_id
    organization = world.organization.pk

    def queue(message_id: int) -> str:
        event = events.append(organization, "message.queued", message_id, epoch=1)
        return f"group {group}: message {message_id} was claimed in event {event.pk}"

    with undone():
        assert f"{queue(second)}, before message {first}" in history.violations()
    with undone():
        queue(first)
        assert f"{queue(second)}, while message {first} was in flight" in history.violations()
    with undone():
        queue(first)
        events.append(organization, "message.processing", first, epoch=1)
        events.append(organization, "message.failed", first, epoch=1, status="ERROR")
        assert f"{queue(second)}, although message {first} blocks it" in history.violations()
    with undone():
        queue(first)
        events.append(organization, "message.processing", first, epoch=1)
        events.append(organization, "message.retrying", first, epoch=1, status="PENDING")
        assert f"{queue(third)}, before message {first}" in history.violations()
    with undone():  # a started message is claimed only once
        queue(first)
        events.append(organization, "message.processing", first, epoch=1)
        assert not any(line.startswith("group") for line in history.violations())
    with undone():
        Message.objects.filter(pk=second).update(sequence=1)
        queue(second)
        assert not any(line.startswith("group") for line in history.violations())


def test_messages_started_out_of_order_are_refused(world: World) -> None:
    """A router that ends a message starts the next one without queuing it."""
    endpoint = world.endpoint(mode="BLOCK_ON_ERROR")
    first, second, third = world.send(endpoint, "a", "b", "c")
    group = world.message(first).group_id
    organization = world.organization.pk

    def start(message_id: int) -> str:
        event = events.append(organization, "message.processing", message_id, epoch=1, call=1)
        return f"group {group}: message {message_id} was claimed in event {event.pk}"

    with undone():
        assert f"{start(second)}, before message {first}" in history.violations()
    with undone():
        start(first)
        assert f"{start(second)}, while message {first} was in flight" in history.violations()
    with undone():
        start(first)
        events.append(organization, "message.failed", first, epoch=1, status="ERROR")
        assert f"{start(second)}, although message {first} blocks it" in history.violations()
    with undone():
        start(first)
        events.append(organization, "message.completed", first, epoch=1, status="COMPLETED")
        start(second)
        assert not any(line.startswith("group") for line in history.violations())
        assert f"{start(third)}, while message {second} was in flight" in history.violations()


def test_message_queued_before_the_days_checked_is_accepted(world: World) -> None:
    endpoint = world.endpoint()
    first = world.send_one(endpoint, "a")
    world.poll()
    world.travel(2 * 86400)
    second = world.send_one(endpoint, "b", sequence=1)
    with undone():
        events.append(world.organization.pk, "message.processing", first, epoch=1, call=1)
        assert not any(line.startswith("group") for line in history.violations(days=1))
        queued = events.append(world.organization.pk, "message.queued", second, epoch=1)
        line = f"message {second} was claimed in event {queued.pk}, while message {first} was in flight"
        assert any(found.endswith(line) for found in history.violations(days=1))
