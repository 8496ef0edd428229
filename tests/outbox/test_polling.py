"""Contract 4, 5 and 11 (docs/guides/outbox.md): no starvation, the poller's duties, its leader."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch.core import clock
from dispatch.core.models import Event, Leadership
from dispatch.core.redis.client import client
from dispatch.core.runtime import loop_runner
from dispatch.core.runtime import queues as queues_to_wake
from dispatch.core.runtime.leader_election import Election, LeadershipLost
from dispatch.core.runtime.loop_runner import leading
from dispatch.core.runtime.loops import Loop
from dispatch.outbox import poller, queues
from dispatch.outbox import publisher as outbox_publisher
from dispatch.outbox.models import Message
from dispatch.outbox.pointer import MessagePointer, check_token
from tests.core.loops import runs
from tests.core.outages import own_valkey
from tests.harness.outbox import World
from tests.support.processes import running
from tests.support.waiting import wait_until

MANY = 10_000


def crowd(world: World, endpoint: object, *, with_immediates: bool) -> None:
    """Add 10,000 messages before all others, half of them unordered."""
    for n in range(10):
        names = [str(i) for i in range(MANY // 20)]
        world.send(endpoint, *names, group="crowd")  # type: ignore[arg-type]
        if with_immediates:
            world.send(endpoint, *names, group=f"crowd {n}", mode="IMMEDIATE")  # type: ignore[arg-type]
        else:
            world.send(endpoint, *names, group="crowd")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "why", ["blocked group", "paused endpoint", "paused pool", "rate-limited pool", "open circuit"]
)
def test_blocked_messages_delay_others_by_at_most_two_polls(world: World, why: str) -> None:
    # Contract 4
    full = world.pool
    other_pool = type(full).objects.create(
        organization=world.organization, code="other", name="Other", kind="messages", concurrency=5
    )
    crowded, other = world.endpoint("Crowded"), world.endpoint("Other", pool=other_pool)
    if why == "blocked group":
        bad = world.send_one(crowded, "bad", group="crowd")
        Message.objects.filter(pk=bad).update(status="ERROR")
        other.pool = full  # in the same pool, even
        other.save()
    crowd(world, crowded, with_immediates=why != "blocked group")
    if why == "paused endpoint":
        crowded.is_paused = True
        crowded.save()
    elif why == "paused pool":
        full.is_paused = True
        full.save()
    elif why == "rate-limited pool":
        full.rate_per_minute = 1
        full.save()
    elif why == "open circuit":
        crowded.target.open_until = clock.now() + timedelta(hours=1)
        crowded.target.save()
    late = world.send_one(other, "late", group="quiet")
    poller.poll_once()
    poller.poll_once()
    assert world.status(late) == "QUEUED"
    stuck = Message.objects.filter(endpoint=crowded, in_flight=True).count()
    assert stuck <= (10 if why == "blocked group" else 1)


def test_groups_that_share_a_full_pool_take_turns(world: World) -> None:
    # Contract 4
    world.pool.concurrency = 1
    world.pool.save()
    erp = world.endpoint()
    world.send(erp, *[f"a{n}" for n in range(6)], group="a")
    world.send(erp, *[f"b{n}" for n in range(6)], group="b")
    world.start()
    world.all_end()
    assert [name[0] for name in world.receiver.names] == ["a", "b"] * 6
    assert world.receiver.most_open == 1


def test_message_is_committed_as_queued_before_its_pointer_is_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Contract 5
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    seen = []

    def publish_many(publications: list) -> list:
        done = threading.Thread(target=lambda: seen.append(_committed(message)))
        done.start()
        done.join()
        seen.append([pointer.authToken for pointer, _ in publications])
        return [None] * len(publications)

    monkeypatch.setattr(outbox_publisher._publisher(), "publish_many", publish_many)
    poller.poll_once()
    committed, tokens = seen
    assert committed == ("QUEUED", 1)
    assert check_token(tokens[0], message) == 1


def _committed(message_id: int) -> tuple[str, int]:
    from django.db import connection

    try:
        return Message.objects.values_list("status", "epoch").get(pk=message_id)
    finally:
        connection.close()


def test_publishes_at_most_ten_at_once_and_claims_one_batch_per_poll(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    # Contract 5
    settings.OUTBOX_BATCH_SIZE = 25  # type: ignore[attr-defined]
    world.pool.concurrency = 100
    world.pool.save()
    erp = world.endpoint()
    for n in range(40):
        world.send(erp, f"{n}", group=f"{n}")
    sizes: list[int] = []
    publisher = outbox_publisher._publisher()
    real = publisher.publish_many
    monkeypatch.setattr(publisher, "publish_many", lambda some: sizes.append(len(some)) or real(some))
    assert poller.poll_once() == 0.0
    assert sizes == [10, 10, 5]
    assert Message.objects.filter(status="QUEUED").count() == 25
    assert poller.poll_once() == 0.0
    assert Message.objects.filter(status="QUEUED").count() == 40


def test_failing_queue_leaves_messages_pending_without_spending_retries(world: World, settings: object) -> None:
    # Contract 5
    erp = world.endpoint()
    ids = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(3)]
    settings.OUTBOX_QUEUE_URL = "redis://127.0.0.1:1/0"  # type: ignore[attr-defined]
    assert poller.poll_once() == settings.OUTBOX_POLL_INTERVAL_S  # type: ignore[attr-defined]
    assert world.statuses(ids) == ["PENDING"] * 3
    assert set(Message.objects.values_list("attempts", "in_flight", "waiting_for")) == {(0, False, "queue")}
    settings.OUTBOX_QUEUE_URL = ""  # type: ignore[attr-defined]
    outbox_publisher.reset()
    world.start()
    world.all_end()
    assert world.statuses(ids) == ["COMPLETED"] * 3


def test_unreachable_queue_costs_one_claim_per_poll(world: World, settings: object) -> None:
    # Contract 5
    erp = world.endpoint()
    ids = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(8)]
    settings.OUTBOX_QUEUE_URL = "redis://127.0.0.1:1/0"  # type: ignore[attr-defined]
    for _ in range(4):
        poller.poll_once()
    queued = Event.objects.filter(kind="message.queued").count()
    assert queued == 8 + 3
    assert world.statuses(ids) == ["PENDING"] * 8
    settings.OUTBOX_QUEUE_URL = ""  # type: ignore[attr-defined]
    outbox_publisher.reset()
    world.start()
    world.all_end()
    assert world.statuses(ids) == ["COMPLETED"] * 8


def test_unreachable_queue_at_startup_is_a_warning_and_is_retried(
    world: World, test_environment: dict[str, str], tmp_path: Path
) -> None:
    # Contract 5
    message = world.send_one(world.endpoint(), "a")
    with own_valkey(tmp_path) as queue:
        queue.kill()
        env = {**test_environment, "OUTBOX_POLL_INTERVAL_S": "0.5", "OUTBOX_QUEUE_URL": queue.url}
        with running("dispatcher", "--only", "outbox_poller,outbox_router", env=env) as dispatcher:
            dispatcher.says("queue_unreachable")
            dispatcher.says("pointers_not_published")
            queue.start()
            world.becomes(message, "COMPLETED")
            assert world.message(message).attempts == 1


def test_failed_poll_is_logged_and_polls_never_overlap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Contract 5
    monkeypatch.setattr(loop_runner, "FIRST_BACKOFF_S", 0.01)
    message = world.send_one(world.endpoint(), "a")
    advance, at_once, tries = poller.claim_next, threading.Semaphore(1), count()

    def watched(now: datetime, **options: Any) -> Any:
        assert at_once.acquire(blocking=False), "two polls at once"
        try:
            if next(tries) < 2:
                raise RuntimeError("on purpose")
            return advance(now, **options)
        finally:
            at_once.release()

    monkeypatch.setattr(poller, "claim_next", watched)
    with capture_logs() as logs, runs(Loop("outbox_poller", poller.poll_once, 0.01)):
        for _ in range(20):
            queues_to_wake.notify_loop("outbox_poller")
        world.becomes(message, "QUEUED")
    assert [line["failures"] for line in logs if line["event"] == "step_failed"] == [1, 2]


def test_duplicate_publication_counts_as_published(world: World) -> None:
    # Contract 5
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    world.poll()
    row = Message.objects.select_related("group", "pool").get(pk=message)
    claim = outbox_publisher.claim_of(
        (row.pk, row.epoch, row.mode, row.group_id, row.pool.code, row.group.key), row.queued_at
    )
    assert outbox_publisher.publish_pointers([claim, claim]) is True
    assert world.status(message) == "QUEUED"
    world.start_router()
    world.becomes(message, "COMPLETED")
    assert world.receiver.names == ["a"]


def test_poll_returns_when_the_next_message_is_due(world: World, settings: object) -> None:
    # Contract 5
    settings.OUTBOX_POLL_INTERVAL_S = 900.0  # type: ignore[attr-defined]
    erp = world.endpoint()
    due_at = clock.now() + timedelta(seconds=600)
    world.send(erp, "later", scheduled_for=due_at)
    before = clock.now()
    wish = world.poll()
    assert wish is not None
    # Between the time left before it was asked and after; never a busy loop.
    left = max((due_at - clock.now()).total_seconds(), poller.MIN_PAUSE_S)
    assert left <= wish <= (due_at - before).total_seconds() < 900.0
    assert world.receiver.names == []
    world.travel(600.1)
    world.start()
    world.receiver.got("later")


def test_new_message_wakes_the_poller_at_once(world: World, test_environment: dict[str, str]) -> None:
    # Contract 5
    erp = world.endpoint()
    env = {**test_environment, "OUTBOX_POLL_INTERVAL_S": "240"}
    with running("dispatcher", "--only", "outbox_poller,outbox_router", env=env) as dispatcher:
        wait_until(lambda: leader_pid() == dispatcher.pid)
        wait_until(
            lambda: client().pubsub_numsub(queues_to_wake.notification_channel())[0][1], message="nobody listens"
        )
        world.send(erp, "warm up")
        world.receiver.count(1)
        world.send(erp, "at once", group="h")
        world.receiver.count(2)


def test_claims_of_a_deposed_leader_are_refused_by_postgres(world: World) -> None:
    # Contract 11
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    old, new = Election("loop:outbox_poller", holder="old"), Election("loop:outbox_poller", holder="new")
    epoch = old.step()
    world.travel(10)  # it sleeps through its lease
    assert new.step() == epoch + 1
    token = leading.set((old.name, epoch))
    try:
        with pytest.raises(LeadershipLost):
            poller.poll_once()
    finally:
        leading.reset(token)
    assert world.status(message) == "PENDING"
    assert Message.objects.get(pk=message).epoch == 0
    token = leading.set((new.name, new.epoch))
    try:
        poller.poll_once()
    finally:
        leading.reset(token)
    assert world.status(message) == "QUEUED"


def test_another_leader_takes_over_after_a_kill_or_a_clean_stop(
    world: World, test_environment: dict[str, str]
) -> None:
    # Contract 11
    erp = world.endpoint()
    # A wait for a lease of an hour would never end.
    env = {**test_environment, "OUTBOX_POLL_INTERVAL_S": "1", "LEADER_LEASE_S": "3600", "LEADER_RENEW_S": "0.5"}
    only = ("dispatcher", "--only", "outbox_poller,outbox_router")
    with running(*only, env=env) as first:
        wait_until(lambda: leader_pid() == first.pid)
        with running(*only, env=env) as second, running(*only, env=env) as third:
            second.says("loops_started")
            third.says("loops_started")
            first.kill()
            assert leader_pid() == first.pid
            Leadership.objects.filter(name="loop:outbox_poller").update(
                expires_at=clock.now()
            )  # its lease is over
            world.send(erp, "after a kill", group="a")
            world.receiver.count(1)
            wait_until(lambda: leader_pid() in (second.pid, third.pid))
            stopped = second if leader_pid() == second.pid else third
            stopped.stop()
            world.send(erp, "after a stop", group="b")
            world.receiver.count(2)


def leader_pid() -> int:
    holder = Leadership.objects.filter(name="loop:outbox_poller").values_list("holder", flat=True).first() or ":0:"
    return int(holder.split(":")[1] or 0)


def test_api_accepts_messages_while_the_queue_is_unreachable(world: World, settings: object) -> None:
    # Contract 11
    settings.OUTBOX_QUEUE_URL = "redis://127.0.0.1:1/0"  # type: ignore[attr-defined]
    erp = world.endpoint()
    world.start()
    message = world.send_one(erp, "a")
    wait_until(lambda: "unpublished" in world.told(message))
    assert world.status(message) in ("PENDING", "QUEUED")
    assert world.receiver.names == []
    world.stop()
    assert world.status(message) == "PENDING"


def test_every_change_of_a_status_is_in_the_event_log(world: World) -> None:
    erp = world.endpoint()
    world.receiver.answer("a", 500, times=1)
    message = world.send_one(erp, "a")
    world.start()
    world.receiver.count(1)
    world.rests()
    world.travel(6)
    world.all_end()
    assert world.told(message) == [
        "created",
        "queued",
        "processing",
        "retrying",
        "queued",
        "processing",
        "completed",
    ]
    assert set(Event.objects.filter(subject_type="message").values_list("actor_type", flat=True)) == {"system"}


def test_pointers_have_exactly_the_six_keys_and_hide_the_group(world: World) -> None:
    erp = world.endpoint()
    world.send(erp, "a", group="secret customer")
    world.send(erp, "b", "c", mode="IMMEDIATE")
    world.poll()
    found = [MessagePointer.from_json(d.pointer_json) for d in queues.consumer("test").receive(10, 1.0)]
    assert len(found) == 3
    assert len({pointer.messageGroupId for pointer in found}) == 3
    assert all(len(pointer.messageGroupId) == 64 for pointer in found)
    assert {pointer.poolCode for pointer in found} == {"DISPATCH-POOL"}
    assert all(pointer.mediationTarget.endswith("/api/v1/dispatch/process/") for pointer in found)


def test_the_first_pointer_of_a_dispatcher_does_not_wait_for_the_pages(test_environment: dict[str, str]) -> None:
    script = (
        "import sys; from dispatch.outbox.publisher import process_url;"
        " print(process_url(), 'dispatch.urls' in sys.modules)"
    )
    with running("shell", "-v", "0", "-c", script, env=test_environment) as child:
        assert child.ends() == 0, child.log()
    assert child.log().strip().endswith("/api/v1/dispatch/process/ False")
