"""Several executors: shards are shared, taken over when one dies, and no run is claimed twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

from django.db import connection, connections
from structlog.testing import capture_logs

from dispatch.core import clock
from dispatch.core.db.prepared import fetch_all
from dispatch.core.redis.client import QUEUES, breaker, client, server_url
from dispatch.core.runtime.loop_runner import REDIS_LOST_AFTER_S
from dispatch.core.runtime.loops import Service
from dispatch.core.runtime.queues import notification_channel
from dispatch.schedules import sql
from dispatch.schedules.models import SHARDS, Executor, Run, ShardLease
from dispatch.schedules.services import schedules as schedule_services
from dispatch.schedules.services.executor import claim_due_runs, next_due
from dispatch.schedules.services.shards import EXECUTOR, ShardLeaseManager, renew_shards_forever
from dispatch.schedules.services.shards import keeper as this_process
from tests.core.loops import runs
from tests.harness.schedules import ALL, World
from tests.support.processes import environment, running
from tests.support.waiting import PATIENCE, wait_until


def test_one_executor_has_all_shards(world: World) -> None:
    one = ShardLeaseManager("one")
    assert one.step() == list(ALL)
    assert one.held() == list(ALL)


def test_executors_share_the_shards(world: World) -> None:
    keepers = [ShardLeaseManager(name) for name in ("one", "two", "three")]
    keepers[0].step()
    for _ in range(3):
        for keeper in keepers:
            keeper.step()
    held = [keeper.held() for keeper in keepers]
    assert sorted(shard for shards in held for shard in shards) == list(ALL)
    assert all(20 <= len(shards) <= 22 for shards in held)


def test_executor_without_redis_leaves_its_shards_to_another(world: World) -> None:
    one, two = ShardLeaseManager("one", lease_s=60), ShardLeaseManager("two", lease_s=60)
    for keeper in (one, two, one, two):
        keeper.step()
    with redis_lost():
        assert one.step_or_yield() == one.held() == []
        assert two.step() == list(ALL)
        world.travel(61)
        two.step()
        assert one.step_or_yield() == []
        two.leave()
        assert one.step_or_yield() == list(ALL)  # no other executor is left
        assert one.step_or_yield() == list(ALL)
    two.step()
    assert len(one.step_or_yield()) == len(two.step()) == SHARDS // 2


@contextmanager
def redis_lost() -> Iterator[None]:
    """Make this process believe that its Redis has failed for a while."""
    server = breaker(server_url(QUEUES))
    with mock.patch.object(server, "failing_s", return_value=REDIS_LOST_AFTER_S):
        yield


def test_shards_of_a_dead_executor_are_taken_over_after_its_lease(world: World) -> None:
    one, two = ShardLeaseManager("one"), ShardLeaseManager("two")
    for keeper in (one, two, one, two):
        keeper.step()
    assert len(two.held()) == SHARDS // 2
    world.travel(500)
    two.step()
    assert len(two.held()) == SHARDS // 2  # the other may only be slow
    world.travel(501)
    two.step()
    assert two.held() == list(ALL)
    assert one.held() == []  # it knows by itself
    world.travel(61)
    two.step()
    assert list(Executor.objects.values_list("name", flat=True)) == ["two"]


def test_stopping_executor_releases_its_shards_at_once(world: World) -> None:
    one, two = ShardLeaseManager("one"), ShardLeaseManager("two")
    for keeper in (one, two, one, two):
        keeper.step()
    one.leave()
    two.step()
    assert two.held() == list(ALL)
    assert fetch_all(sql.UNHELD_SHARDS, {"shards": SHARDS}) == [(0,)]


def test_dispatcher_renews_shards_wakes_executor_and_releases_them(world: World) -> None:
    """Runs in an event loop, where database queries on the loop's own thread are rejected."""
    listener = client().pubsub(ignore_subscribe_messages=True)
    listener.subscribe(notification_channel())
    heard: list[bytes] = []

    def is_woken() -> bool:
        message = listener.get_message(timeout=0.1)
        heard.extend([message["data"]] if message else [])
        return EXECUTOR.encode() in heard

    with capture_logs() as logs, runs(Service("schedules_shards", renew_shards_forever)):
        wait_until(lambda: this_process.held() == list(ALL))
        wait_until(is_woken)
    assert held_by_somebody() == 0
    assert [one for one in logs if one["log_level"] in ("warning", "error")] == []
    listener.close()


def test_a_schedule_keeps_its_shard_and_many_spread_over_all(world: World) -> None:
    assert schedule_services.shard_of(42) == schedule_services.shard_of(42)
    found = Counter(schedule_services.shard_of(n) for n in range(64_000))
    assert len(found) == SHARDS
    assert max(found.values()) < 2 * min(found.values())


def test_an_executor_takes_only_what_is_in_its_shards(world: World) -> None:
    schedules = [world.schedule(f"S{n}", trigger_at=clock.now()) for n in range(30)]
    mine = range(SHARDS // 2)
    claim_due_runs(mine)
    taken = set(Run.objects.filter(status="in_progress").values_list("schedule_id", flat=True))
    assert taken == {schedule.pk for schedule in schedules if schedule.shard in mine}


def test_two_executors_with_same_shards_claim_each_run_once(world: World) -> None:
    for n in range(200):
        world.schedule(f"S{n}", every=1, unit="minute")
    world.travel(61)
    together = threading.Barrier(4)
    errors: list[BaseException] = []

    def execute() -> None:
        try:
            together.wait(PATIENCE)
            while claim_due_runs(ALL, limit=17).found:
                pass
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=execute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    world.execute()
    assert Run.objects.filter(status="in_progress").count() == 200
    assert Run.objects.filter(status="scheduled").count() == 200
    world.go()
    assert Counter(Counter(one.run_id for one in world.note.done).values()) == {1: 200}


def test_a_killed_dispatcher_process_is_followed_by_the_other(world: World, test_environment: object) -> None:
    env = environment(connection.settings_dict["NAME"], LEADER_LEASE_S="2", LEADER_RENEW_S="0.5")
    only = ("--only", "schedules_shards,schedules_executor,schedules_reconciler")
    with running("dispatcher", *only, env=env) as first:
        wait_until(lambda: held_by_somebody() == SHARDS, message=first.log)
        with running("dispatcher", *only, env=env) as second:
            wait_until(lambda: ShardLease.objects.values("holder").distinct().count() == 2, message=second.log)
            first.kill()
            schedules = [world.schedule(f"S{n}", trigger_at=clock.now()) for n in range(40)]
            wait_until(
                lambda: Run.objects.filter(status="in_progress").count() == 40,
                message=lambda: second.log()[-3000:],
            )
            assert second.stop() == 0
    assert held_by_somebody() == 0  # handed over at once
    world.go()
    assert [world.statuses(schedule) for schedule in schedules] == [["succeeded"]] * 40
    assert len(world.note.done) == 40


def held_by_somebody() -> int:
    return ShardLease.objects.exclude(holder="").count()


def test_runs_of_an_unknown_kind_do_not_hold_up_others(world: World) -> None:
    """During a rolling upgrade, runs of a new kind wait for a process that knows it."""
    strange = [world.schedule(f"new {n}", trigger_at=clock.now()) for n in range(5)]
    Run.objects.filter(schedule__in=strange).update(kind="not-yet-known")
    known = world.schedule("known", trigger_at=clock.now() + timedelta(seconds=1))
    world.travel(2)
    claimed = claim_due_runs(ALL, 5)
    assert (claimed.found, claimed.taken) == (1, 1)
    assert world.statuses(known) == ["in_progress"]
    assert next_due(ALL) is None
    assert [world.statuses(schedule) for schedule in strange] == [["scheduled"]] * 5
