"""What the outbox reads, holds and waits for is bounded, whatever a disabled endpoint gathers or a queue does."""

from __future__ import annotations

import threading
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection
from prometheus_client import REGISTRY

from accounts import loops
from dispatch.core import clock, fault_injection
from dispatch.core.db import prepared
from dispatch.core.events.readers import readers
from dispatch.core.models import Event, EventCursor
from dispatch.outbox import metrics, publisher, sql
from dispatch.outbox.models import Attempt, Message, MessageGroup
from dispatch.outbox.services import recovery, target_health
from dispatch.outbox.services.scheduling import claim_next
from tests.core.horizon import all_readable
from tests.harness.outbox import World
from tests.outbox.test_idle_targets import scans
from tests.support.row_locks import held
from tests.support.waiting import PATIENCE, wait_until

MANY = 3000
MessageFilter = import_module("dispatch.outbox.api.messages").MessageFilter
ADD_GROUPS = """
INSERT INTO outbox_messagegroup (organization_id, endpoint_id, name, key, wake_at, target_id, created_at)
SELECT organization_id, endpoint_id, n, n, now(), target_id, now()
FROM outbox_messagegroup, generate_series(1, %s) n WHERE name = 'first'
"""
ADD_MESSAGES = """
INSERT INTO outbox_message (organization_id, endpoint_id, target_id, url, type, payload, group_id, sequence, mode,
    status, created_at, due_at, epoch, attempts, calls, lapses, in_flight, last_error, waiting_for, resolution)
SELECT g.organization_id, g.endpoint_id, g.target_id, '', 't', '{}', g.id, 99, 'BLOCK_ON_ERROR', 'PENDING', now(),
    now(), 0, 0, 0, 0, false, '', '', ''
FROM outbox_messagegroup g, generate_series(1, %s) WHERE g.name ~ '^[0-9]+$'
"""


def gather(world: World, *, groups: int, per_group: int) -> None:
    """Add PENDING messages of a disabled endpoint, as they gather over months."""
    erp = world.endpoint("Gone", disabled_at=clock.now())
    world.send(erp, *map(str, range(groups)), group="first")
    with connection.cursor() as cursor:
        cursor.execute(ADD_GROUPS, [groups])
        cursor.execute(ADD_MESSAGES, [per_group])
        cursor.execute("ANALYZE outbox_messagegroup, outbox_message")


def rows_read(text: str, given: dict[str, Any], table: str) -> float:
    plan = prepared.fetch_all("EXPLAIN (ANALYZE, FORMAT JSON) " + text, given)[0][0]
    return sum(rows for name, rows in scans(plan[0]["Plan"]) if name == table)


def test_the_search_for_missing_groups_skips_what_waits(world: World) -> None:
    gather(world, groups=20, per_group=MANY // 20)
    read = rows_read(sql.OPEN_GROUPS, {"after": 0, "limit": 100}, "outbox_message")
    assert read < 100, "a row or two for each of 21 groups"
    assert rows_read(sql.OPEN_GROUPS, {"after": 0, "limit": 5}, "outbox_message") < 20


def test_missing_groups_are_found_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "GROUPS_CHECKED", 2)
    monkeypatch.setattr(recovery, "_checked_to", 0)
    erp = world.endpoint()
    ids = [world.send_one(erp, name, group=name) for name in "abcde"]
    MessageGroup.objects.filter(name__in=["b", "e"]).update(wake_at=None)
    assert [recovery.requeue_missing_groups() for _ in range(4)] == [1, 0, 1, 0]
    world.poll()
    assert world.statuses(ids) == ["QUEUED"] * 5


def test_counts_of_open_messages_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gather(world, groups=10, per_group=MANY // 10)
    monkeypatch.setattr(metrics, "COUNT_LIMIT", 50)
    assert dict(metrics.open_messages()) == {("PENDING",): 50}
    assert rows_read(sql.OPEN_BY_STATUS, {"limit": 50}, "outbox_message") <= 60


def test_messages_of_an_endpoint_are_found_by_index(world: World) -> None:
    few = world.endpoint("Few")
    ids = world.send(few, "a", "b", group="f")
    gather(world, groups=10, per_group=MANY // 10)
    own = Message.objects.of(world.organization.pk).order_by("-id")
    request = SimpleNamespace(organization=world.organization)
    by_name = MessageFilter({"endpoint": "Few"}, own, request=request).qs
    assert [message.pk for message in by_name] == ids[::-1]
    for rows in (by_name, own.filter(status="EXPIRED")):
        text, given = rows.query.sql_with_params()
        assert rows_read(text, given, "outbox_message") <= len(ids)  # type: ignore[arg-type]


def test_steps_are_deleted_with_their_message_and_the_rest_of_the_log_stays(world: World) -> None:
    done = world.send_one(world.endpoint(), "a")
    world.start()
    world.becomes(done, "COMPLETED")
    world.stop()
    all_readable()
    last = Event.objects.order_by("-xid", "-id").first()
    assert last
    for name in readers:
        EventCursor.objects.update_or_create(name=name, defaults={"xid": last.xid, "event_id": last.pk})
    world.travel(91 * 86_400)
    while loops.delete_expired() is not None:
        pass
    assert not Message.objects.exists()
    kinds = Event.objects.filter(subject_type="message", subject_id=done).order_by("id")
    assert list(kinds.values_list("kind", flat=True)) == ["message.created", "message.completed"]


def test_steps_that_a_reader_has_not_read_are_kept(world: World) -> None:
    done = world.send_one(world.endpoint(), "a")
    world.start()
    world.becomes(done, "COMPLETED")
    world.stop()
    EventCursor.objects.all().delete()
    world.travel(91 * 86_400)
    while loops.delete_expired() is not None:
        pass
    assert not Message.objects.exists()
    assert Event.objects.filter(subject_id=done, kind="message.queued").exists()


def test_a_slow_queue_delays_no_result(world: World, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.OUTBOX_HAND_OVER = False
    a, b = world.send(world.endpoint(), "a", "b")
    world.poll()
    is_free, publish = threading.Event(), publisher.publish_pointers

    def slow(claims: Any) -> bool:
        assert is_free.wait(PATIENCE)
        return publish(claims)

    monkeypatch.setattr(publisher, "publish_pointers", slow)
    world.start_router()
    try:
        world.becomes(a, "COMPLETED")  # with b claimed, whose pointer the queue has not taken yet
        assert world.status(b) == "QUEUED"
        other = world.send_one(world.endpoint("CRM"), "c", mode="IMMEDIATE")
        publish(claim_next(clock.now())[0])
        world.becomes(other, "COMPLETED")
        assert world.status(b) == "QUEUED"
    finally:
        is_free.set()
    world.becomes(b, "COMPLETED")


def test_an_error_after_the_commit_records_no_result_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(target_health, "disable_gone", broken)
    world.receiver.answer("a", 410)
    message = world.send_one(world.endpoint(), "a")
    world.start()
    wait_until(lambda: world.message(message).waiting_for == "retry")
    world.stop()
    assert Attempt.objects.count() == len(world.receiver.visits)
    assert not Attempt.objects.filter(is_late=True).exists()


def test_a_commit_without_reply_records_no_result_twice(world: World) -> None:
    losses = [OperationalError("server closed the connection unexpectedly")]
    counted = REGISTRY.get_sample_value("dispatch_outbox_late_total")

    def lose() -> None:
        if losses:
            raise losses.pop()

    message = world.send_one(world.endpoint(), "a")
    with fault_injection.arm_crash_point("outbox.finish.committed", lose):
        world.start()
        world.becomes(message, "COMPLETED")
        world.stop()
    assert not losses
    assert len(world.receiver.visits) == 1
    assert [(a.outcome, a.is_late) for a in Attempt.objects.all()] == [("delivered", False)]
    assert REGISTRY.get_sample_value("dispatch_outbox_late_total") == counted


def test_a_group_whose_message_was_locked_stays_in_the_queue(world: World) -> None:
    message = world.send_one(world.endpoint(), "a")
    with held(world.message(message)):
        world.poll()
        assert world.status(message) == "PENDING"
    world.poll()
    assert world.status(message) == "QUEUED"
