"""A run that breaks or cannot be read fails alone; results are stored; deleted schedules stay deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction

from dispatch.core import clock
from dispatch.schedules.kinds import http as http_kind
from dispatch.schedules.kinds.base import Assignment, LeaseCheck, Outcome
from dispatch.schedules.models import Run, RunReport, Schedule
from dispatch.schedules.services import reconciliation
from dispatch.schedules.services import schedules as schedule_services
from dispatch.schedules.services import worker as schedule_worker
from tests.core.threads import Elsewhere
from tests.harness.schedules import ANA, NoteKind, World, noting
from tests.outbox.receiver import Receiver
from tests.support.database import read_only_error
from tests.support.waiting import wait_until

LEASE_S = 91.0


def due(world: World, count: int, **fields: Any) -> list[Schedule]:
    """Create schedules that are due now, claimed into one message."""
    now = clock.now()
    found = [world.schedule(f"{n}", trigger_at=now, retry_schedule_s=[], **fields) for n in range(count)]
    world.execute()
    return found


def spoil(schedule: Schedule) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE schedules_schedule SET headers = 'gAAAAAB-bad' WHERE id = %s", [schedule.pk])


def ended(world: World, schedules: list[Schedule]) -> list[str]:
    return [world.run(schedule).status for schedule in schedules]


@pytest.mark.parametrize("error", [DatabaseError("on purpose"), RuntimeError("on purpose")])
def test_a_run_that_breaks_fails_alone(world: World, error: Exception) -> None:
    schedules = due(world, 5)
    world.note.answers = [Outcome("succeeded"), error]
    world.go()
    assert ended(world, schedules) == ["succeeded", "failed", "succeeded", "succeeded", "succeeded"]
    assert "on purpose" in world.run(schedules[1]).error
    assert sorted(one.run_id for one in world.note.done) == [world.run(schedule).pk for schedule in schedules]


@pytest.mark.parametrize("error", [OperationalError("deadlock detected"), read_only_error()])
def test_run_stopped_by_the_database_is_requeued_separately(world: World, error: Exception) -> None:
    schedules = due(world, 3)
    world.note.answers = [Outcome("succeeded"), error]
    world.go()
    assert ended(world, schedules) == ["succeeded", "running", "succeeded"]
    world.travel(LEASE_S)
    world.reconcile()
    world.go()
    assert ended(world, schedules) == ["succeeded"] * 3
    assert world.run(schedules[1]).attempt == 1


def test_runs_come_back_one_per_message_after_a_lapse(world: World) -> None:
    schedules = due(world, 4)
    (message,) = world.messages()
    assert len(schedule_worker.start_runs(message.args[1])) == 4  # and the worker dies
    world.travel(LEASE_S)
    world.reconcile()
    assert [len(message.args[1]) for message in world.messages()] == [1, 1, 1, 1]
    world.travel(31)
    world.reconcile()  # those messages are lost
    assert [len(message.args[1]) for message in world.messages()] == [1, 1, 1, 1]
    world.travel(31)
    world.reconcile()
    world.go()
    assert ended(world, schedules) == ["succeeded"] * 4


def test_workers_that_died_are_counted_per_attempt(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[60])

    def let_a_worker_die() -> None:
        pairs = [pair for message in world.messages() for pair in message.args[1]]
        assert len(schedule_worker.start_runs(pairs)) == 1
        world.travel(LEASE_S)
        world.reconcile()

    world.execute()
    let_a_worker_die()
    world.note.answers = [Outcome("failed", error="x")]
    world.go()
    assert world.statuses(schedule) == ["retrying"]
    world.travel(60)
    world.execute()
    let_a_worker_die()
    world.go()
    assert world.statuses(schedule) == ["succeeded"]


def test_headers_that_cannot_be_read_fail_their_run_alone(world: World) -> None:
    schedules = due(world, 3)
    spoil(schedules[1])
    world.go()
    assert ended(world, schedules) == ["succeeded", "failed", "succeeded"]
    assert "FIELD_ENCRYPTION_KEYS" in world.run(schedules[1]).error


def test_headers_that_cannot_be_read_do_not_stop_the_reconciler(world: World) -> None:
    schedules = due(world, 3)
    (message,) = world.messages()
    schedule_worker.start_runs(message.args[1])
    spoil(schedules[1])
    lost = world.schedule("lost", trigger_at=clock.now())
    world.execute()
    world.messages()
    world.travel(LEASE_S)
    world.reconcile()
    world.go()
    world.travel(31)
    world.reconcile()
    world.go()
    assert ended(world, [*schedules, lost]) == ["succeeded", "failed", "succeeded", "succeeded"]


def test_failing_lookup_of_a_kind_does_not_stop_the_reconciler(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (schedule,) = due(world, 1)
    (message,) = world.messages()
    schedule_worker.start_runs(message.args[1])
    lost = world.schedule("lost", trigger_at=clock.now())
    world.execute()
    world.messages()
    world.travel(LEASE_S)

    def broken(given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        raise KeyError("on purpose")

    monkeypatch.setattr(world.note, "find", broken)
    world.reconcile()
    world.go()
    assert ended(world, [schedule, lost]) == ["running", "succeeded"]
    monkeypatch.undo()
    world.reconcile()
    world.go()
    assert ended(world, [schedule, lost]) == ["succeeded", "succeeded"]


def test_a_report_that_cannot_be_applied_does_not_stop_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = due(world, 3)
    world.work()
    world.messages()  # the status queue's are lost
    bad, change = world.run(schedules[1]).pk, reconciliation.apply_reports

    def broken(run_ids: Sequence[int], **given: Any) -> int:
        if bad in run_ids:
            raise KeyError("on purpose")
        return change(run_ids, **given)

    monkeypatch.setattr(reconciliation, "apply_reports", broken)
    world.travel(10)
    world.reconcile()
    assert ended(world, schedules) == ["succeeded", "running", "succeeded"]


def test_an_answered_call_is_recorded_before_the_slowest_ends(world: World) -> None:
    receiver = Receiver()
    with noting(http_kind.KIND):  # type: ignore[arg-type]
        receiver.hold("slow")
        now = clock.now()
        for name in ("slow", "quick", "bad"):
            payload = {"url": receiver.url, "body": {"name": name}, "timeout_s": 30}
            world.schedule(name, trigger_at=now, payload=payload, retry_schedule_s=[])
        receiver.answer("bad", 400)
        world.execute()
        (message,) = world.messages()

        def work() -> None:
            try:
                message.deliver()
            finally:
                connections.close_all()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            wait_until(lambda: RunReport.objects.count() == 2)
            expected = {"slow": "running", "quick": "succeeded", "bad": "failed"}

            def statuses() -> dict[str, str]:
                world.settle()  # a pass leaves out rows that the worker still holds
                return dict(Run.objects.values_list("schedule__name", "status"))

            wait_until(lambda: statuses() == expected, message=lambda: str(statuses()))
        finally:
            receiver.let_go("slow")
            worker.join()
            receiver.close()
        world.settle()
    assert dict(Run.objects.values_list("schedule__name", "status"))["slow"] == "succeeded"


def test_a_run_of_a_deleted_schedule_is_not_handed_out_after_a_lapse(world: World) -> None:
    schedules = due(world, 2)
    (message,) = world.messages()
    schedule_worker.start_runs(message.args[1])
    schedule_services.delete_schedule(schedules[0].pk, actor=ANA)
    world.travel(LEASE_S)
    world.reconcile()
    world.go()
    assert ended(world, schedules) == ["cancelled", "succeeded"]
    assert world.run(schedules[0]).error == "Its schedule was deleted."
    assert len(world.note.done) == 1


def test_run_of_a_deleted_schedule_is_not_requeued(world: World) -> None:
    schedules = due(world, 2)

    class Short(NoteKind):
        def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome]]:
            self.done.append(given[0])
            yield given[0], Outcome("succeeded")
            schedule_services.delete_schedule(schedules[1].pk, actor=ANA)

    with noting(Short()) as short:
        world.go()
    assert ended(world, schedules) == ["succeeded", "cancelled"]
    assert len(short.done) == 1


def test_start_skips_a_locked_run(world: World) -> None:
    schedules = due(world, 3)
    (message,) = world.messages()
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=world.run(schedules[0]).pk)
        Elsewhere(message.deliver).finish()
    world.settle()
    assert ended(world, schedules) == ["in_progress", "succeeded", "succeeded"]
    world.travel(31)
    world.reconcile()
    world.go()
    assert ended(world, schedules) == ["succeeded"] * 3


def test_reconciler_skips_locked_runs(world: World) -> None:
    schedules = due(world, 4)
    world.note.answers = [Outcome("failed"), Outcome("failed")]
    world.work()
    world.messages()  # the status queue's are lost
    world.travel(10)
    with transaction.atomic():
        Schedule.objects.select_for_update(no_key=True).get(pk=schedules[0].pk)
        Run.objects.select_for_update().get(pk=world.run(schedules[3]).pk)
        Elsewhere(world.reconcile).finish()
    assert ended(world, schedules) == ["running", "failed", "succeeded", "running"]
    world.reconcile()
    assert ended(world, schedules) == ["failed", "failed", "succeeded", "succeeded"]
