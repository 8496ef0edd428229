"""What people and clients do: change, pause, delete, run now; and what that does to runs under way."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from dispatch.core import clock, faults
from dispatch.core.problems import Conflict
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules.outcomes import FAILED
from dispatch.schedules.services import by_hand, managing
from tests import factories
from tests.core.threads import Elsewhere
from tests.schedules.world import ANA, World


def test_deleting_cancels_what_has_not_started(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    world.travel(3600)
    world.execute()  # one waits in a worker's queue, one is next
    managing.delete(schedule.pk, actor=ANA)
    assert world.statuses(schedule) == ["cancelled", "cancelled"]
    world.go()
    world.travel(7200)
    world.go()
    assert world.note.done == []
    assert world.told(world.run(schedule, 1)) == ["in_progress", "cancelled"]
    managing.delete(schedule.pk, actor=ANA)  # nothing more
    assert world.told(schedule) == ["created", "deleted"]


def test_what_has_started_ends_and_is_recorded_and_not_retried(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[60])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.travel(3600)
    world.execute()
    world.work()
    managing.delete(schedule.pk, actor=ANA)
    world.settle()
    assert world.statuses(schedule) == ["failed", "cancelled"]
    assert "failing" not in world.told(schedule)


@pytest.mark.parametrize("first", ["delete", "start"])
def test_a_deletion_racing_a_start_one_of_them_wins(world: World, first: str) -> None:
    """Both want the run's row; whoever comes second waits for the other's commit and then finds it changed."""
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    if first == "delete":
        waiting: list[Elsewhere] = []

        def start_meanwhile() -> None:
            waiting.append(Elsewhere(message.deliver))
            waiting[0].wait_for_lock()

        with faults.arm("schedules.delete.before_commit", start_meanwhile):
            managing.delete(schedule.pk, actor=ANA)
        waiting[0].finish()
        assert world.note.done == []
        assert world.statuses(schedule) == ["cancelled"]
        return
    with transaction.atomic():
        from dispatch.schedules.services import working

        assert len(working.start(message.args[1])) == 1
        deleting = Elsewhere(lambda: managing.delete(schedule.pk, actor=ANA))
        deleting.wait_for_lock()
    deleting.finish()
    assert world.statuses(schedule) == ["running"]
    assert world.again(schedule).status == "deleted"


def test_a_deletion_racing_the_executor(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute")
    world.travel(60)

    def execute_meanwhile() -> None:
        other = Elsewhere(world.execute)
        other.finish()  # it skips what is locked, and does not wait

    with faults.arm("schedules.delete.before_commit", execute_meanwhile):
        managing.delete(schedule.pk, actor=ANA)
    world.go()
    assert world.statuses(schedule) == ["cancelled"]
    assert world.note.done == []


def test_another_time_makes_the_next_run_anew(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    at = clock.now() + timedelta(minutes=10)
    managing.change(schedule.pk, {"trigger_at": at, "every": None, "unit": ""}, actor=ANA)
    assert world.again(schedule).next_at == at
    assert [run.trigger_at for run in world.runs(schedule)] == [at]
    world.travel(601)
    world.go()
    assert world.statuses(schedule) == ["succeeded"]
    managing.change(schedule.pk, {"trigger_at": None, "cron": "0 9 * * *"}, actor=ANA)
    assert world.again(schedule).status == "active"
    assert world.statuses(schedule) == ["succeeded", "scheduled"]


def test_an_end_in_the_past_ends_it(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    managing.change(schedule.pk, {"ends_at": clock.now()}, actor=ANA)
    assert world.again(schedule).status == "ended"
    assert world.runs(schedule) == []


def test_changing_a_paused_one_leaves_it_paused(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    managing.pause(schedule.pk, actor=ANA)
    managing.change(schedule.pk, {"every": 2}, actor=ANA)
    found = world.again(schedule)
    assert (found.status, world.run(schedule).due_at) == ("paused", None)


def test_a_change_decided_on_another_version_is_refused(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    managing.change(schedule.pk, {"name": "Other"}, actor=ANA, version=1)
    with pytest.raises(Conflict) as refused:
        managing.pause(schedule.pk, actor=ANA, version=1)
    assert refused.value.conflict["version"] == 2
    assert refused.value.conflict["by"]["label"] == "Ana Dispatcher"
    assert refused.value.conflict["did"] == "changed"


def test_nothing_can_be_done_to_a_deleted_one(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    managing.delete(schedule.pk, actor=ANA)
    for act in (managing.pause, managing.resume, managing.run_now):
        with pytest.raises(managing.NotInThisStatus):
            act(schedule.pk, actor=ANA)
    with pytest.raises(managing.NotInThisStatus):
        managing.change(schedule.pk, {"name": "x"}, actor=ANA)


def test_run_now_runs_one_more_and_leaves_the_next_where_it_is(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    next_at = world.again(schedule).next_at
    run = managing.run_now(schedule.pk, actor=ANA)
    world.go()
    assert Run.objects.get(pk=run.pk).status == "succeeded"
    assert Run.objects.get(pk=run.pk).number is None
    assert world.again(schedule).next_at == next_at
    assert world.again(schedule).occurrences == 1


def test_run_now_runs_also_what_is_paused(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    managing.pause(schedule.pk, actor=ANA)
    run = managing.run_now(schedule.pk, actor=ANA)
    world.go()
    assert Run.objects.get(pk=run.pk).status == "succeeded"


def test_a_failed_run_is_tried_again_by_hand(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.go()
    run = world.run(schedule)
    by_hand.retry(run.pk, actor=ANA)
    world.go()
    assert world.run(schedule).status == "succeeded"
    with pytest.raises(managing.NotInThisStatus):
        by_hand.retry(run.pk, actor=ANA)


def test_a_run_that_waits_in_the_queue_is_cancelled_by_hand_and_the_next_one_is_not(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute")
    world.travel(60)
    world.execute()
    by_hand.cancel(world.run(schedule, 1).pk, actor=ANA)
    world.go()
    assert world.note.done == []
    with pytest.raises(managing.NotInThisStatus):
        by_hand.cancel(world.run(schedule, 2).pk, actor=ANA)
    assert world.statuses(schedule) == ["cancelled", "scheduled"]


def test_taking_a_failing_one_in_hand_settles_its_alert(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.travel(3600)
    world.go()
    managing.pause(schedule.pk, actor=ANA)
    assert world.told(schedule) == ["created", "failing", "recovered", "paused"]
    assert world.again(schedule).failures == 0


def test_the_database_refuses_a_second_next_run_and_a_second_run_of_an_occurrence(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    of = {"organization": world.organization, "schedule": schedule, "kind": "http", "shard": 1}
    with pytest.raises(IntegrityError, match="one_next_run_per_schedule"), transaction.atomic():
        Run.objects.create(number=2, trigger_at=clock.now(), **of)
    with pytest.raises(IntegrityError, match="one_run_per_occurrence"), transaction.atomic():
        Run.objects.create(number=1, trigger_at=clock.now(), status="missed", ended_at=clock.now(), **of)
    with pytest.raises(IntegrityError, match="schedule_has_one_timing"), transaction.atomic():
        Schedule.objects.filter(pk=schedule.pk).update(cron="0 9 * * *")


def test_runs_that_ended_long_ago_are_forgotten_and_no_others(world: World) -> None:
    from dispatch.schedules.services.forgetting import forget_runs

    schedule = world.schedule(every=1, unit="day", missed="all")
    for _ in range(3):
        world.travel(86_400)
        world.go()
    before = clock.now() - timedelta(days=1, hours=12)
    other = factories.organization()
    assert forget_runs(other.pk, before, 100) == 0
    assert forget_runs(world.organization.pk, before, 100) == 1
    assert world.statuses(schedule) == ["succeeded", "succeeded", "scheduled"]


def test_a_schedule_is_forgotten_when_it_has_ended_and_its_runs_are_forgotten(world: World) -> None:
    from dispatch.schedules.services.forgetting import forget_runs, forget_schedules

    ours = world.organization.pk
    once = world.schedule("Once", trigger_at=clock.now())
    deleted = world.schedule("Deleted", every=1, unit="day")
    paused = world.schedule("Paused", every=1, unit="day")
    managing.pause(paused.pk, actor=ANA)
    managing.delete(deleted.pk, actor=ANA)
    world.go()
    world.travel(100 * 86_400)
    assert forget_schedules(ours, clock.now(), 100) == 0  # their runs are there
    assert forget_runs(ours, clock.now(), 100) == 2
    late = managing.run_now(once.pk, actor=ANA)
    assert forget_schedules(ours, world.again(deleted).changed_at, 100) == 0  # not old enough
    assert forget_schedules(factories.organization().pk, clock.now(), 100) == 0
    assert forget_schedules(ours, clock.now(), 100) == 1
    assert set(Schedule.objects.values_list("name", flat=True)) == {"Once", "Paused"}
    world.go()
    assert Run.objects.get(pk=late.pk).status == "succeeded"
