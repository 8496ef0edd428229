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
        return f"group {group}: message {message_id} was queued in event {event.pk}"

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
    with undone():
        Message.objects.filter(pk=second).update(sequence=1)
        queue(second)
        assert not any(line.startswith("group") for line in history.violations())
