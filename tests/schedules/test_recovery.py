"""Lost, duplicate and reordered messages, killed workers, a flushed Redis: every run ends once.

Each run is executed once per attempt, or once more if its worker died.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from redis.exceptions import ConnectionError as RedisGone

from dispatch.core import clock, fault_injection
from dispatch.core.db.prepared import execute, fetch_all
from dispatch.core.redis import generation
from dispatch.core.runtime.queues import rq_queue
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, RunReport
from dispatch.schedules.rules.outcomes import FAILED
from dispatch.schedules.services import reconciliation, results, worker
from tests.conftest import forget_redis
from tests.core.threads import Elsewhere
from tests.harness.schedules import World
from tests.support.database import read_only_error

LEASE_S = 91.0


# --- Messages to workers
# -------------------------------------------------------------------------------------------


def test_a_lost_message_to_the_workers_is_sent_again(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    assert len(world.messages()) == 1  # taken off the queue, and lost
    world.travel(10)
    assert world.reconcile() == 0
    world.travel(21)
    assert world.reconcile() == 1
    world.go()
    assert world.statuses(schedule) == ["succeeded"]
    assert len(world.note.done) == 1


def test_a_message_that_only_waits_its_turn_is_not_sent_again(world: World) -> None:
    world.schedule(trigger_at=clock.now())
    world.execute()
    world.travel(600)  # a long queue: nobody has come to it yet
    assert world.reconcile() == 0
    world.work()
    assert len(world.note.done) == 1


def test_a_doubled_message_is_worked_once(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    for _ in range(3):
        message.deliver()
    world.settle()
    message.deliver()
    assert len(world.note.done) == 1
    assert world.statuses(schedule) == ["succeeded"]
    assert world.told(world.run(schedule)) == ["in_progress", "running", "succeeded"]


def test_two_workers_with_the_same_message_work_it_once(world: World) -> None:
    for n in range(20):
        world.schedule(f"S{n}", trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    both = [Elsewhere(message.deliver), Elsewhere(message.deliver)]
    for one in both:
        one.finish()
    assert len(world.note.done) == 20
    assert len({one.run_id for one in world.note.done}) == 20


def test_a_message_that_turns_up_late_does_nothing(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[60])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.execute()
    (first,) = world.messages()
    first.deliver()
    world.settle()
    world.travel(61)
    world.execute()
    first.deliver()  # of the first attempt, while the second one waits in the queue
    assert len(world.note.done) == 1
    world.go()
    assert [one.attempt for one in world.note.done] == [1, 2]
    assert world.statuses(schedule) == ["succeeded"]


def test_redis_flushed_with_runs_in_progress(world: World) -> None:
    generation.ensure_generation()
    waiting = world.schedule("waiting", trigger_at=clock.now())
    world.execute()
    forget_redis()
    assert generation.ensure_generation()  # what the dispatcher asks each second; it finds Redis empty
    world.go()
    assert world.statuses(waiting) == ["succeeded"]
    assert len(world.note.done) == 1


def test_redis_flushed_with_outcomes_on_the_status_queue(world: World) -> None:
    generation.ensure_generation()
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    world.work()
    forget_redis()
    generation.ensure_generation()
    world.travel(6)
    world.reconcile()
    assert world.statuses(schedule) == ["succeeded"]
    world.travel(600)
    world.reconcile()
    world.go()
    assert len(world.note.done) == 1


# --- Messages to the status worker
# ---------------------------------------------------------------------------------


def test_a_lost_status_message_is_repaired_and_the_work_is_not_done_again(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    world.work()
    assert len(world.messages()) == 1
    world.travel(LEASE_S + 60)  # also when its lease has ended long ago
    world.reconcile()
    assert world.statuses(schedule) == ["succeeded"]
    assert len(world.note.done) == 1


def test_doubled_status_messages_change_nothing_twice(world: World) -> None:
    schedule = world.schedule(every=1, unit="day", retry_schedule_s=[60])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.travel(86_400)
    world.execute()
    world.work()
    (message,) = world.messages()
    for _ in range(3):
        message.deliver()
    run = world.run(schedule)
    assert (run.status, run.attempt) == ("retrying", 2)
    assert world.told(run) == ["in_progress", "running", "retrying"]


def test_status_messages_out_of_order(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[60])
    world.note.answers = [Outcome(FAILED, error="first")]
    world.execute()
    world.work()
    (first,) = world.messages()
    first.deliver()
    world.travel(61)
    world.execute()
    world.work()
    (second,) = world.messages()
    second.deliver()
    first.deliver()
    assert world.run(schedule).status == "succeeded"
    assert world.told(world.run(schedule))[-1] == "succeeded"


def test_a_late_report_of_an_older_epoch_is_dropped(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    (assigned,) = worker.start_runs(message.args[1])
    world.travel(LEASE_S)
    world.reconcile()  # its worker seems to have died: handed out once more
    worker.report_outcomes([(assigned, Outcome(FAILED, error="from the past"))])
    assert not RunReport.objects.exists()
    world.go()
    assert world.statuses(schedule) == ["succeeded"]


def test_worker_applies_results_without_the_status_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()

    def gone(name: str) -> None:
        raise RedisGone("gone")

    monkeypatch.setattr(worker, "rq_queue", gone)
    message.deliver()
    assert world.statuses(schedule) == ["succeeded"]


def test_status_queue_carries_report_during_database_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    with monkeypatch.context() as patched:

        def away(*args: object) -> None:
            raise DatabaseError("away")

        patched.setattr(worker, "store_reports", away)
        message.deliver()
    assert not RunReport.objects.exists()
    world.settle()
    assert world.statuses(schedule) == ["succeeded"]
    assert world.run(schedule).result == {"noted": 1}


def test_a_report_is_stored_once_the_database_is_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    store, failures = worker.store_reports, [OperationalError("away"), InterfaceError("away"), read_only_error()]

    def store_later(reports: Any) -> None:
        if failures:
            raise failures.pop()
        store(reports)

    monkeypatch.setattr(worker, "store_reports", store_later)
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.01)
    message.deliver()
    assert RunReport.objects.count() == 1
    (status,) = rq_queue(django_settings.SCHEDULE_STATUS_QUEUE).jobs
    assert (list(status.args), status.retries_left) == ([[world.run(schedule).pk], []], 5)
    world.settle()
    assert world.statuses(schedule) == ["succeeded"]


# --- Workers that die
# ----------------------------------------------------------------------------------------------


def test_a_worker_that_died_before_it_began_costs_nothing(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    with fault_injection.arm_crash_point("schedules.work.started"), pytest.raises(fault_injection.Interrupted):
        world.work()
    assert world.run(schedule).status == "running"
    world.travel(LEASE_S)
    world.reconcile()
    world.go()
    assert world.statuses(schedule) == ["succeeded"]
    assert len(world.note.done) == 1
    assert world.run(schedule).attempt == 1


def test_run_of_dead_worker_is_executed_only_once_more(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[])
    world.execute()
    for _ in range(2):
        with fault_injection.arm_crash_point("schedules.work.done"), pytest.raises(fault_injection.Interrupted):
            world.work()
        world.travel(LEASE_S)
        world.reconcile()
    assert len(world.note.done) == 2
    assert world.run(schedule).status == "failed"
    assert world.run(schedule).error == "Two workers stopped while executing it."
    world.travel(3600)
    world.reconcile()
    world.go()
    assert len(world.note.done) == 2


def test_retry_rule_applies_after_two_worker_deaths(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[60])
    world.execute()
    for _ in range(2):
        with fault_injection.arm_crash_point("schedules.work.done"), pytest.raises(fault_injection.Interrupted):
            world.work()
        world.travel(LEASE_S)
        world.reconcile()
    run = world.run(schedule)
    assert (run.status, run.attempt, run.lapses) == ("retrying", 2, 0)


def test_work_created_by_a_worker_that_died_is_found(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    with fault_injection.arm_crash_point("schedules.work.done"), pytest.raises(fault_injection.Interrupted):
        world.work()
    world.note.created = {world.run(schedule).pk: {"submission": 42}}
    world.travel(LEASE_S)
    world.reconcile()
    assert world.statuses(schedule) == ["succeeded"]
    assert world.run(schedule).result == {"submission": 42}
    assert len(world.note.done) == 1


def test_a_worker_that_died_after_it_had_reported(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    with fault_injection.arm_crash_point("schedules.report.written"), pytest.raises(fault_injection.Interrupted):
        world.work()
    world.travel(6)
    world.reconcile()
    assert world.statuses(schedule) == ["succeeded"]
    assert len(world.note.done) == 1


def test_worker_with_an_expired_lease_starts_no_run(world: World) -> None:
    """The worker was suspended, and another has its runs by now."""
    for n in range(3):
        world.schedule(f"S{n}", trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    given = worker.start_runs(message.args[1])
    world.travel(LEASE_S)
    world.reconcile()
    assert worker._renew_leases(given) == set()


def test_a_status_worker_that_died_is_followed_by_another(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    world.work()
    with (
        fault_injection.arm_crash_point("schedules.apply.before_commit"),
        pytest.raises(fault_injection.Interrupted),
    ):
        world.settle()
    assert world.run(schedule).status == "running"
    world.travel(6)
    world.reconcile()
    assert world.statuses(schedule) == ["succeeded"]


def test_an_executor_that_died_before_its_commit_took_nothing(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    world.travel(3600)
    with (
        fault_injection.arm_crash_point("schedules.claim.before_commit"),
        pytest.raises(fault_injection.Interrupted),
    ):
        world.execute()
    assert world.statuses(schedule) == ["scheduled"]
    assert world.messages() == []
    world.go()
    assert world.statuses(schedule) == ["succeeded", "scheduled"]


def test_runs_that_a_worker_had_no_time_for_are_given_back(world: World) -> None:
    for n in range(3):
        world.schedule(f"S{n}", trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    given = worker.start_runs(message.args[1])
    assert worker.return_runs(given[1:], "no time") == 2
    worker.report_outcomes([(given[0], Outcome("succeeded"))])
    world.go()
    assert len(world.note.done) == 2
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}


def test_reports_of_ended_runs_change_nothing(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.go()
    run = world.run(schedule)
    assert results.apply_reports([run.pk]) == 0
    assert reconciliation.reconcile_runs() == 0
    # Even one that a broken worker writes afterwards.
    execute("UPDATE schedules_runreport SET outcome = 'failed' WHERE run_id = %(id)s", {"id": run.pk})
    assert results.apply_reports([run.pk]) == 0
    assert world.statuses(schedule) == ["succeeded"]


def test_report_burst_is_applied_by_index_despite_empty_statistics(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE schedules_schedule, schedules_run, schedules_runreport")
    for n in range(30):
        world.schedule(f"S{n}", trigger_at=clock.now())
    world.execute()
    world.work()
    running = list(Run.objects.filter(status="running").values_list("pk", flat=True))
    read_whole = "SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE relname LIKE 'schedules_%%'"
    with transaction.atomic():
        before = dict(fetch_all(read_whole))
        assert results.apply_reports(running) == 30
        after = dict(fetch_all(read_whole))
    assert {name: count for name, count in after.items() if count != before.get(name, 0)} == {}
