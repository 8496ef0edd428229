"""Admins and other endpoints learn that a group is blocked or a message failed."""

from __future__ import annotations

from typing import Any

from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.outbox.event_reader import READER
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules.responses import PERMANENT, Verdict
from dispatch.outbox.services import attempt_results, attempts
from dispatch.outbox.services.attempts import DeliveryAttempt
from notifications.loops import reader
from notifications.models import Notification
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.support import factories

MARIA = Actor("user", 7, "Maria")


def refuse(world: World, message_id: int) -> None:
    """Poll, and answer the message's attempt with a permanent refusal."""
    world.poll()
    (call,), _ = attempts.start_attempts([(message_id, world.message(message_id).epoch)])
    assert isinstance(call, DeliveryAttempt)
    now = attempt_results.clock.now()
    verdict = Verdict(PERMANENT, error_class="http_400", error="The receiver answered 400.")
    attempt_results.finish_attempts([attempt_results.AttemptResult(call, verdict, now, now, 0.1, 400)])
    assert world.status(message_id) == "ERROR"


def read_all(*readers: Any) -> None:
    all_readable()
    for one in readers:
        while one.step():
            pass


def test_a_blocked_group_notifies_admins_once_until_somebody_decides(world: World) -> None:
    boss, ann = factories.admin(world.organization, "Boss"), factories.dispatcher(world.organization)
    erp = world.endpoint()
    a, b = world.send(erp, "a", "b")
    refuse(world, a)
    urgent = world.send_one(erp, "urgent", sequence=1)
    refuse(world, urgent)  # a second error of the same group
    read_all(reader)
    notices = Notification.objects.filter(kind="group.blocked")
    assert [notice.user for notice in notices] == [boss]
    assert notices[0].title == f"Message {a} failed, so its group g waits"
    assert "400" in notices[0].body
    assert "ERP" in notices[0].body
    assert not Notification.objects.filter(user=ann).exists()

    world.act("ignore", urgent, actor=MARIA)
    read_all(reader)
    assert notices.get().settled_at is None
    world.act("resolve", a, actor=MARIA)
    read_all(reader)
    assert notices.get().settled_how == "Maria decided about the message"
    refuse(world, b)
    read_all(reader)
    assert notices.filter(settled_at=None).count() == 1


def test_a_failed_message_that_blocks_nothing_notifies_admins(world: World) -> None:
    boss = factories.admin(world.organization, "Boss")
    erp = world.endpoint()
    first, second = world.send(erp, "a", "b", mode="IMMEDIATE")
    refuse(world, first)
    refuse(world, second)  # within the same hour
    read_all(reader)
    notice = Notification.objects.get(user=boss)
    assert (notice.kind, notice.subject_id, notice.body) == ("message.failed", first, "ERP · order.changed")
    world.act("retry", first, actor=MARIA)
    read_all(reader)
    notice.refresh_from_db()
    assert notice.settled_how == "Maria retried the message"


def messages_to(endpoint: Endpoint) -> list[str]:
    return list(Message.objects.filter(endpoint=endpoint, event_id__isnull=False).values_list("type", flat=True))


def test_failures_are_sent_to_other_endpoints_that_subscribe(world: World) -> None:
    wanted = ["message.failed", "group.blocked"]
    erp, ops = world.endpoint("ERP", event_types=wanted), world.endpoint("Ops", event_types=wanted)
    everything = world.endpoint("Everything", event_types=["*"])
    a = world.send_one(erp, "a")
    refuse(world, a)
    read_all(READER)
    assert sorted(messages_to(ops)) == ["group.blocked", "message.failed"]
    assert messages_to(erp) == []
    assert messages_to(everything) == ["group.blocked"]

    for told in Message.objects.filter(endpoint=ops):
        refuse(world, told.pk)
    read_all(READER)
    assert Event.objects.filter(kind="message.failed").count() == 3
    assert (messages_to(erp), messages_to(everything)) == ([], ["group.blocked"])
