"""Old messages that have ended are deleted; what order, blocks and users depend on is not."""

from __future__ import annotations

import threading
from datetime import timedelta

from django.db import connections, transaction

from accounts import loops
from accounts.models import RetentionRule
from dispatch.core import clock
from dispatch.outbox.models import Attempt, Message, MessageGroup, PortalLink
from dispatch.outbox.services import retention
from tests.harness.outbox import World
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

DAY_S = 86_400


def age(world: World) -> None:
    while loops.delete_expired() is not None:
        pass


def test_old_messages_are_deleted_with_attempts_and_group(world: World) -> None:
    erp = world.endpoint()
    old = world.send(erp, "a", "b", group="gone") + world.send(erp, "c", group="kept")
    world.act("cancel", world.send_one(erp, "d", group="cancelled"))
    world.start()
    world.all_end()
    world.travel(89 * DAY_S)
    age(world)
    assert Message.objects.count() == 4
    fresh = world.send_one(erp, "e", group="kept")
    world.all_end()
    world.travel(2 * DAY_S)
    age(world)
    assert list(Message.objects.values_list("pk", flat=True)) == [fresh]
    assert set(MessageGroup.objects.values_list("name", flat=True)) == {"kept"}
    assert not Attempt.objects.filter(message_id__in=old).exists()
    again = world.send(erp, "f", "g", group="gone")
    world.all_end()
    assert world.statuses(again) == ["COMPLETED", "COMPLETED"]


def test_errors_and_messages_they_hold_are_kept_forever(world: World) -> None:
    erp = world.endpoint()
    world.receiver.answer("bad", 422)
    _, bad, held = world.send(erp, "done", "bad", "held")
    later = world.send_one(erp, "later", group="h", scheduled_for=clock.now() + timedelta(days=1000))
    world.start()
    world.becomes(bad, "ERROR")
    world.travel(400 * DAY_S)
    age(world)
    assert set(Message.objects.values_list("pk", flat=True)) == {bad, held, later}
    assert world.group().blocked_by == bad
    world.receiver.heal()
    world.act("retry", bad)
    world.becomes(held, "COMPLETED")
    assert world.receiver.names == ["done", "bad", "bad", "held"]


def test_cancelled_message_in_flight_is_not_deleted(world: World) -> None:
    message = world.send_one(world.endpoint(), "a")
    world.poll()
    Message.objects.filter(pk=message).update(status="CANCELLED", ended_at=clock.now())
    world.travel(100 * DAY_S)
    assert retention.delete_expired_messages(world.organization.pk, clock.now(), 10) == 0


def test_batches_are_small_and_each_organization_goes_by_its_own_rule(world: World) -> None:
    other = factories.organization()
    theirs = world.send_one(world.endpoint("Theirs", organization=other), "t")
    ours = world.send(world.endpoint(), *"abcde")
    Message.objects.update(status="COMPLETED", ended_at=clock.now())
    RetentionRule.objects.create(organization=other, what="messages", days=0)
    world.travel(1)
    assert [retention.delete_expired_messages(world.organization.pk, clock.now(), 2) for _ in range(4)] == [
        2,
        2,
        1,
        0,
    ]
    assert not Message.objects.filter(pk__in=ours).exists()
    world.travel(5000 * DAY_S)
    age(world)
    assert Message.objects.filter(pk=theirs).exists()


def test_message_added_while_its_group_is_deleted_is_kept(world: World) -> None:
    erp = world.endpoint()
    for mode in ("BLOCK_ON_ERROR", "IMMEDIATE"):
        first = world.send_one(erp, "a", group="g", mode=mode)
        Message.objects.filter(pk=first).update(status="COMPLETED", ended_at=clock.now())
        MessageGroup.objects.update(wake_at=None)
        world.travel(1)
        joined: list[int] = []
        thread = threading.Thread(target=lambda mode=mode, joined=joined: _join(world, erp, mode, joined))
        with transaction.atomic():
            assert retention.delete_expired_messages(world.organization.pk, clock.now(), 10) == 1
            thread.start()  # it has found the group, and waits for its lock
            wait_until(_somebody_waits)
        thread.join(PATIENCE)
        assert world.status(joined[0]) == "PENDING"
        world.act("cancel", *joined)
        Message.objects.all().delete()
        MessageGroup.objects.all().delete()


def _join(world: World, endpoint: object, mode: str, joined: list[int]) -> None:
    try:
        joined.append(world.send_one(endpoint, "b", group="g", mode=mode))  # type: ignore[arg-type]
    finally:
        connections.close_all()


def _somebody_waits() -> bool:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_portal_links_are_deleted_when_the_time_of_the_rule_is_over(world: World) -> None:
    erp = world.endpoint()
    organization = factories.organization()
    day = timedelta(days=1)
    ends = {
        "unopened": {"expires_at": 0},
        "used": {"expires_at": 0, "session_until": 2},
        "revoked": {"expires_at": 300, "session_until": 300, "revoked_at": 0},
        "in use": {"expires_at": 0, "session_until": 300},
        "not opened yet": {"expires_at": 300},
    }
    now = clock.now()
    for label, days in ends.items():
        PortalLink.objects.create(
            organization=world.organization, endpoint=erp, uid=label, label=label, session_s=60,
            **{name: now + number * day for name, number in days.items()},
        )  # fmt: skip
    RetentionRule.objects.create(organization=world.organization, what="portal_links", days=30)
    assert retention.delete_expired_links(organization.pk, now + 400 * day, 10) == 0
    world.travel(31 * DAY_S)
    age(world)
    left = PortalLink.objects.values_list("label", flat=True).order_by("label")
    assert list(left) == ["in use", "not opened yet", "used"]
    world.travel(3 * DAY_S)
    age(world)
    assert sorted(left.all()) == ["in use", "not opened yet"]
