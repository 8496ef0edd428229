"""The dispatcher's loops run by interval or notification, with one leader, and survive failing steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import pytest
import structlog
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import Client

from accounts.models import Organization
from dispatch.console import health
from dispatch.core import clock
from dispatch.core.models import Leadership
from dispatch.core.observability import gauges, metrics
from dispatch.core.redis.client import LEADS, breaker, server_url
from dispatch.core.runtime import loop_runner
from dispatch.core.runtime.leader_election import Election
from dispatch.core.runtime.loop_runner import Runner, leading
from dispatch.core.runtime.loops import Loop, NothingSucceeded, Tally, all_loops, find_loop
from dispatch.core.runtime.queues import notify_loop
from tests.core.loops import runs
from tests.support import factories
from tests.support.processes import running
from tests.support.row_locks import held
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_step_repeats_at_its_interval_or_on_request() -> None:
    calm: list[float] = []
    hasty: list[float] = []

    def at_once_three_times() -> float | None:
        hasty.append(time.monotonic())
        return 0 if len(hasty) < 3 else None

    with runs(Loop("calm", lambda: calm.append(1.0), 3600), Loop("hasty", at_once_three_times, 3600)):
        wait_until(lambda: len(hasty) == 3)
    assert len(calm) == 1


def test_failing_step_is_retried_while_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_runner, "FIRST_BACKOFF_S", 0.01)
    tries: list[int] = []
    neighbour: list[int] = []

    def fails_twice() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("on purpose")

    with runs(Loop("fails", fails_twice, 3600), Loop("neighbor", lambda: neighbour.append(1), 0.01)):
        wait_until(lambda: len(tries) == 3 and len(neighbour) > 3)


def test_pauses_after_failures_grow_to_half_a_minute() -> None:
    assert loop_runner.backoff(1) <= 0.5
    assert 0.7 * 4 <= loop_runner.backoff(4) <= 4
    assert 0.7 * 30 <= loop_runner.backoff(1000) <= 30


def test_a_loop_is_woken_before_its_interval() -> None:
    steps: list[int] = []
    with runs(Loop("sleepy", lambda: steps.append(1), 3600)):
        wait_until(lambda: len(steps) == 1)

        def poked() -> bool:
            notify_loop("sleepy")  # the listener may not have subscribed yet
            return len(steps) > 1

        wait_until(poked, message="it was not woken", interval=0.1)


def test_waking_another_loop_leaves_this_one_asleep() -> None:
    mine: list[int] = []
    other: list[int] = []
    with runs(Loop("mine", lambda: mine.append(1), 3600), Loop("other", lambda: other.append(1), 3600)):

        def poked() -> bool:
            notify_loop("other")
            return len(other) > 1

        wait_until(poked, interval=0.1)
    assert len(mine) == 1


def test_a_broken_database_connection_costs_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_runner, "FIRST_BACKOFF_S", 0.01)
    done: list[int] = []

    def step() -> None:
        with connection.cursor() as cursor:
            if not done:
                done.append(0)
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            cursor.execute("SELECT 1")
            done.append(1)

    with runs(Loop("unlucky", step, 0.01)):
        wait_until(lambda: len(done) > 2)


def test_one_of_two_dispatchers_runs_an_elected_loop(settings: object) -> None:
    settings.LEADER_LEASE_S, settings.LEADER_RENEW_S = (
        3600.0,
        0.1,
    )  # waiting for expiry would time out
    first: list[int] = []
    second: list[int] = []
    with runs(Loop("alone", lambda: first.append(1), 0.01, elected=True)) as stop_first:
        wait_until(lambda: first)
        with runs(Loop("alone", lambda: second.append(1), 0.01, elected=True)):
            count = len(first)
            wait_until(lambda: len(first) > count + 5)
            assert not second
            stop_first()
            wait_until(lambda: second, message="the leadership was not handed over at once")


def test_stop_hands_over_all_leaderships_with_one_query(settings: object) -> None:
    settings.LEADER_LEASE_S, settings.LEADER_RENEW_S = 3600.0, 0.1
    names = [f"loop {n}" for n in range(12)]
    stepped: set[str] = set()
    asked: list[str] = []

    def resigning(execute: Callable, sql: str, params: object, many: bool, context: dict) -> object:
        if sql.startswith("\nUPDATE core_leadership"):
            asked.append(sql)
        return execute(sql, params, many, context)

    def hear_connections(connection: BaseDatabaseWrapper, **_: object) -> None:
        if resigning not in connection.execute_wrappers:  # the same object connects again and again
            connection.execute_wrappers.append(resigning)

    connection_created.connect(hear_connections)
    try:
        with runs(*(Loop(name, partial(stepped.add, name), 3600, elected=True) for name in names)) as stop:
            wait_until(lambda: stepped == set(names))
            stop()
    finally:
        connection_created.disconnect(hear_connections)
    assert len(asked) == 1
    assert not Leadership.objects.exclude(holder="").exists()
    assert all(Election(f"loop:{name}").step() == 2 for name in names)


def test_a_long_step_keeps_its_leadership(settings: object) -> None:
    settings.LEADER_LEASE_S, settings.LEADER_RENEW_S = 600.0, 0.05
    release, inside = threading.Event(), threading.Event()

    def long_step() -> None:
        inside.set()
        release.wait(2 * PATIENCE)

    with runs(Loop("long", long_step, 3600, elected=True)):
        assert inside.wait(PATIENCE)
        rival = Election("loop:long", lease_s=600.0)
        for _ in range(3):  # more than two leases, most of one at a time
            clock.travel(500)
            fresh = clock.now() + timedelta(seconds=500)
            wait_until(lambda until=fresh: Leadership.objects.get(name="loop:long").expires_at > until)
            assert rival.step() is None
        release.set()


def test_deposed_leader_stops_stepping_and_its_step_knows_its_epoch(settings: object) -> None:
    settings.LEADER_LEASE_S, settings.LEADER_RENEW_S = 3600.0, 0.05
    epochs: list[int] = []
    with runs(Loop("deposed", lambda: epochs.append(leading.get()[1]), 0.01, elected=True)):
        wait_until(lambda: epochs)
        # Another process leads now, as after a pause longer than the lease.
        Leadership.objects.filter(name="loop:deposed").update(
            holder="another", epoch=7, expires_at=clock.now() + timedelta(days=1)
        )
        count = 0

        def still() -> bool:
            nonlocal count
            before, count = count, len(epochs)
            return before == count

        wait_until(still, message="it keeps stepping", interval=0.3)
    assert set(epochs) == {1}


def test_step_is_not_run_if_leadership_was_just_lost() -> None:
    steps: list[int] = []
    loop = Loop("alone", lambda: steps.append(1), 3600, elected=True)
    runner = Runner([loop])
    lost = Election("loop:alone")  # leads nothing: its step would run unfenced
    assert runner._step(loop, lost) is None
    assert steps == []


@pytest.fixture
def gives_up_soon(monkeypatch: pytest.MonkeyPatch, settings: object) -> None:
    settings.LEADER_LEASE_S, settings.LEADER_RENEW_S = 3600.0, 0.1  # nothing expires by itself
    monkeypatch.setattr(loop_runner, "GIVE_UP_AFTER_S", 0.05)
    monkeypatch.setattr(loop_runner, "FIRST_BACKOFF_S", 0.01)


def test_a_loop_exports_its_counters_before_its_first_step() -> None:
    Runner([Loop("not_run_yet", lambda: None, 60.0, elected=True)])
    exported = metrics.render_metrics().decode()
    for outcome in ("done", "failed"):
        assert f'dispatch_loop_steps_total{{loop="not_run_yet",outcome="{outcome}"}} 0.0' in exported
    for reason in ("failing", "stuck", "blocked"):
        assert f'dispatch_leaderships_given_up_total{{name="not_run_yet",reason="{reason}"}} 0.0' in exported


def given_up(name: str, reason: str) -> float:
    return metrics.leaderships_given_up.labels(name, reason)._value.get()


@pytest.mark.usefixtures("gives_up_soon")
@pytest.mark.parametrize("error", [ValueError("on purpose"), NothingSucceeded(3)])
def test_a_leader_that_only_fails_is_followed_by_another(error: Exception) -> None:
    tries: list[int] = []
    done: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise error

    before = given_up("alone", "failing")
    with runs(Loop("alone", fails, 0.01, elected=True)):
        wait_until(lambda: tries)
        with runs(Loop("alone", lambda: done.append(1), 0.01, elected=True)):
            wait_until(lambda: done, message="nobody follows the leader that only fails")
    assert len(tries) >= loop_runner.GIVE_UP_FAILURES
    assert given_up("alone", "failing") > before


@pytest.mark.usefixtures("gives_up_soon")
def test_leader_that_fails_occasionally_keeps_leading() -> None:
    tries: list[int] = []

    def fails_mostly() -> None:
        tries.append(1)
        if len(tries) % loop_runner.GIVE_UP_FAILURES:
            raise ValueError("on purpose")

    before = given_up("alone", "failing")
    with runs(Loop("alone", fails_mostly, 0.01, elected=True)):
        wait_until(lambda: len(tries) > 4 * loop_runner.GIVE_UP_FAILURES)
    assert given_up("alone", "failing") == before


@pytest.mark.usefixtures("gives_up_soon")
def test_a_leader_that_has_lost_redis_hands_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_runner, "REDIS_LOST_AFTER_S", 0.05)
    steps: list[int] = []
    candidate = Election("loop:alone")
    needy = Loop("alone", lambda: steps.append(1), 0.01, elected=True, needs_redis=LEADS)
    server = breaker(server_url(LEADS))
    with runs(needy, Loop("neighbor", lambda: None, 0.01, elected=True)):
        wait_until(lambda: steps)
        server.record_failure(ConnectionError("unplugged"))
        wait_until(candidate.step, message="the leader without Redis does not hand over")
        assert Election("loop:neighbor").step() is None  # it needs no Redis
        candidate.resign()
        steps.clear()
        wait_until(lambda: steps, message="nobody leads, although no other process wants to")
        regained = Leadership.objects.get(name="loop:alone").epoch
        wait_until(lambda: len(steps) > 30)  # several renewals later
        assert Leadership.objects.get(name="loop:alone").epoch == regained


@pytest.mark.usefixtures("gives_up_soon")
def test_a_leader_whose_step_is_stuck_is_followed_by_another() -> None:
    release, inside = threading.Event(), threading.Event()
    done: list[int] = []

    def stuck() -> None:
        inside.set()
        release.wait(2 * PATIENCE)

    with runs(Loop("alone", stuck, 0.01, elected=True, limit_s=0.3)):
        assert inside.wait(PATIENCE)
        with runs(Loop("alone", lambda: done.append(1), 0.01, elected=True)):
            wait_until(lambda: done, message="nobody follows the leader that is stuck")
        release.set()


@pytest.mark.usefixtures("gives_up_soon")
def test_leader_that_waits_for_a_lock_names_the_session_that_blocks_it(client: Client) -> None:
    row = factories.organization()
    client.force_login(factories.dispatcher(row), backend="django.contrib.auth.backends.ModelBackend")
    inside = threading.Event()

    def waits() -> None:
        inside.set()
        with transaction.atomic():
            Organization.objects.select_for_update().get(pk=row.pk)

    before = given_up("alone", "blocked")
    with structlog.testing.capture_logs() as logs, connection.cursor() as cursor, ExitStack() as lock:
        lock.enter_context(held(row))
        with runs(Loop("alone", waits, 0.01, elected=True, limit_s=0.3)):
            assert inside.wait(PATIENCE)
            wait_until(lambda: Leadership.objects.exclude(given_up_because="").exists())
            cursor.execute(
                "SELECT pid FROM pg_locks WHERE relation = 'accounts_organization'::regclass AND granted"
            )
            holders = {str(pid) for (pid,) in cursor.fetchall()}
            reason = Leadership.objects.get(name="loop:alone").given_up_because
            shown_in_metric = list(gauges.loops_given_up())
            health.reset()
            shown = client.get("/health/").content.decode()
            lock.close()  # the loop can stop
    assert any(f"blocked by session {pid} (" in reason for pid in holders), reason
    assert (("loop:alone",), 1.0) in shown_in_metric
    assert "1 background task stuck" in shown
    assert "session" not in shown, "it may be of another database"
    assert given_up("alone", "blocked") > before
    (entry,) = [entry for entry in logs if entry["event"] == "leadership_given_up"]
    assert entry["blocked_by"] in reason


def test_a_step_counts_as_failed_only_when_all_members_failed() -> None:
    tally = Tally()
    tally.check()
    tally.failed()
    with pytest.raises(NothingSucceeded):
        tally.check()
    tally.succeeded()
    tally.check()


def test_after_a_failure_a_loop_pauses_as_long_as_the_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_runner, "backoff", lambda failures: 0.8)
    tries: list[float] = []

    def fails_once() -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise ValueError("on purpose")

    with runs(Loop("fails", fails_once, 3600)):
        wait_until(lambda: len(tries) == 2)
    assert tries[1] - tries[0] >= 0.8  # and long before its interval


def test_every_loop_has_a_unique_name_and_valid_interval() -> None:
    loops = all_loops()
    assert "redis_generation" in {loop.name for loop in loops}
    assert all(0 < loop.interval_s <= 86_400 for loop in loops if isinstance(loop, Loop))
    with pytest.raises(KeyError, match="redis_generation"):
        find_loop("no such loop")


def test_the_dispatcher_process_runs_hands_over_and_ends_when_asked(test_environment: dict[str, str]) -> None:
    with running("dispatcher", "--only", "redis_generation", env=test_environment) as dispatcher:
        dispatcher.says("redis_rebuilt")
        dispatcher.signal(signal.SIGTERM)
        assert dispatcher.ends() == 0
        assert "Traceback" not in dispatcher.log()


def test_the_dispatcher_refuses_a_loop_that_does_not_exist(test_environment: dict[str, str]) -> None:
    with running("dispatcher", "--only", "auditor,nonsense", env=test_environment) as dispatcher:
        assert dispatcher.ends() != 0
        assert "No loop is called" in dispatcher.log()
        assert "nonsense" in dispatcher.log()


def test_leadership_lapses_with_the_moved_clock(settings: object) -> None:
    leader = Election("loop:x")
    leader.step()
    clock.travel(leader.lease_s + 1)
    assert not leader.is_leader
