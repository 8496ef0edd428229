"""Change, pause, delete and run schedules, and the effect on runs in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import IntegrityError, connection, transaction

from dispatch.core import clock, fault_injection
from dispatch.core.api.problems import Conflict
from dispatch.schedules.kinds.base import Assignment, Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules.outcomes import FAILED
from dispatch.schedules.services import actions, schedules, worker
from tests.core.threads import Elsewhere
from tests.harness.schedules import ANA, World
from tests.support import factories

MESSAGE = {"kind": "message", "payload": {"type": "t", "payload": {}, "target_url": "https://x.example/"}}


def test_deleting_cancels_what_has_not_started(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    world.travel(3600)
    world.execute()  # one waits in a worker's queue, one is next
    schedules.delete_schedule(schedule.pk, actor=ANA)
    assert world.statuses(schedule) == ["cancelled", "cancelled"]
    world.go()
    world.travel(7200)
    world.go()
    assert world.note.done == []
    assert world.told(world.run(schedule, 1)) == ["in_progress", "cancelled"]
    schedules.delete_schedule(schedule.pk, actor=ANA)  # nothing more
    assert world.told(schedule) == ["created", "deleted"]


def test_running_run_of_a_deleted_schedule_is_recorded_without_retry(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[60])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.travel(3600)
    world.execute()
    world.work()
    schedules.delete_schedule(schedule.pk, actor=ANA)
    world.settle()
    assert world.statuses(schedule) == ["failed", "cancelled"]
    assert "failing" not in world.told(schedule)


@pytest.mark.parametrize("first", ["delete", "start"])
def test_a_deletion_racing_a_start_one_of_them_wins(world: World, first: str) -> None:
    """Both need the run's row: a start skips a run that is being deleted, and a deletion waits for a start."""
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    if first == "delete":
        started: list[int] = []

        def start_meanwhile() -> None:
            Elsewhere(message.deliver).finish()
            started.append(len(world.note.done))

        with fault_injection.arm_crash_point("schedules.delete.before_commit", start_meanwhile):
            schedules.delete_schedule(schedule.pk, actor=ANA)
        assert started == [0]
        message.deliver()
        assert world.note.done == []
        assert world.statuses(schedule) == ["cancelled"]
        return
    with transaction.atomic():
        from dispatch.schedules.services import worker

        assert len(worker.start_runs(message.args[1])) == 1
        deleting = Elsewhere(lambda: schedules.delete_schedule(schedule.pk, actor=ANA))
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

    with fault_injection.arm_crash_point("schedules.delete.before_commit", execute_meanwhile):
        schedules.delete_schedule(schedule.pk, actor=ANA)
    world.go()
    assert world.statuses(schedule) == ["cancelled"]
    assert world.note.done == []


def test_changed_timing_replaces_the_next_run(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    at = clock.now() + timedelta(minutes=10)
    schedules.change_schedule(schedule.pk, {"trigger_at": at, "every": None, "unit": ""}, actor=ANA)
    assert world.again(schedule).next_at == at
    assert [run.trigger_at for run in world.runs(schedule)] == [at]
    world.travel(601)
    world.go()
    assert world.statuses(schedule) == ["succeeded"]
    schedules.change_schedule(schedule.pk, {"trigger_at": None, "cron": "0 9 * * *"}, actor=ANA)
    assert world.again(schedule).status == "active"
    assert world.statuses(schedule) == ["succeeded", "scheduled"]


@pytest.mark.parametrize(
    "limit",
    [
        {"ends_at": datetime(2027, 6, 1, tzinfo=UTC)},
        {"max_occurrences": 30},
        {"time_zone": "America/Denver"},
        {"missed": "all"},
        {"name": "Other"},
    ],
)
def test_a_limit_does_not_move_an_interval(world: World, limit: dict[str, Any]) -> None:
    world.travel_to("2027-03-01 16:00")
    schedule = world.schedule(every=1, unit="hour")
    world.travel(20 * 60)
    schedules.change_schedule(schedule.pk, limit, actor=ANA)
    found = world.again(schedule)
    assert found.anchor == schedule.anchor
    assert found.next_at == schedule.next_at


def test_a_limit_does_not_skip_a_run_that_is_due(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    world.travel_to(schedule.next_at)
    world.travel(5)
    schedules.change_schedule(schedule.pk, {"max_occurrences": 3}, actor=ANA)
    assert world.again(schedule).next_at == schedule.next_at
    world.go()
    assert world.statuses(schedule) == ["succeeded", "scheduled"]
    schedules.change_schedule(schedule.pk, {"max_occurrences": 1}, actor=ANA)
    assert world.again(schedule).status == "ended"


def test_another_interval_is_counted_from_the_change_or_its_start(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    world.travel(3600)
    schedules.change_schedule(schedule.pk, {"every": 2}, actor=ANA)
    assert world.again(schedule).anchor > schedule.anchor
    starts_at = clock.now() + timedelta(days=3)
    schedules.change_schedule(schedule.pk, {"starts_at": starts_at}, actor=ANA)
    assert world.again(schedule).anchor == starts_at
    schedules.change_schedule(schedule.pk, {"starts_at": None}, actor=ANA)
    assert world.again(schedule).anchor == starts_at


def test_another_time_zone_does_not_repeat_what_ran_once(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now() + timedelta(seconds=60))
    world.travel(61)
    world.go()
    schedules.change_schedule(schedule.pk, {"time_zone": "America/Denver"}, actor=ANA)
    world.go()
    assert world.statuses(schedule) == ["succeeded"]
    assert world.again(schedule).status == "ended"


def test_an_end_in_the_past_ends_it(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    schedules.change_schedule(schedule.pk, {"ends_at": clock.now()}, actor=ANA)
    assert world.again(schedule).status == "ended"
    assert world.runs(schedule) == []


def test_changing_a_paused_one_leaves_it_paused(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    schedules.pause_schedule(schedule.pk, actor=ANA)
    schedules.change_schedule(schedule.pk, {"every": 2}, actor=ANA)
    found = world.again(schedule)
    assert (found.status, world.run(schedule).due_at) == ("paused", None)


@pytest.mark.parametrize("value", [True, 1.0])
def test_payload_with_another_type_of_an_equal_value_is_a_change(world: World, value: Any) -> None:
    schedule = world.schedule(every=1, unit="day", payload={"body": {"urgent": 1, "n": 2}})
    for _ in range(2):
        changes = {"payload": {"body": {"n": 2, "urgent": value}}}
        assert schedules.change_schedule(schedule.pk, changes, actor=ANA).version == 2
    assert repr(world.again(schedule).payload["body"]["urgent"]) == repr(value)


@pytest.mark.parametrize("value", [1e16, 1.5e300, -0.0])
def test_payload_with_a_number_that_is_stored_in_another_form_is_no_change(world: World, value: float) -> None:
    payload = {"body": {"n": value}}
    schedule = world.schedule(every=1, unit="day", payload=payload)
    assert schedules.change_schedule(schedule.pk, {"payload": payload}, actor=ANA).version == 1


def test_a_changed_kind_takes_queued_runs_along(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (old,) = world.messages()
    schedules.change_schedule(schedule.pk, MESSAGE, actor=ANA)
    old.deliver()
    assert world.statuses(schedule) == ["in_progress"]
    assert world.note.times == []
    (new,) = world.messages()
    assert new.queue == django_settings.SCHEDULE_KIND_QUEUES["message"]
    new.deliver()
    world.settle()
    assert world.statuses(schedule) == ["succeeded"]


def fail(world: World, given: Sequence[Assignment]) -> None:
    worker.report_outcomes([(assignment, Outcome(FAILED, error="x")) for assignment in given])
    world.settle()
    world.travel(61)


def give_back(world: World, given: Sequence[Assignment]) -> None:
    worker.return_runs(given, "Its worker ran out of time.")


def die(world: World, given: Sequence[Assignment]) -> None:
    world.travel(django_settings.SCHEDULE_LEASE_S + 1)
    assert world.reconcile() == len(given)


@pytest.mark.parametrize("end", [fail, give_back, die])
def test_changed_kind_takes_a_running_run_along_when_it_is_repeated(
    world: World, end: Callable[[World, Sequence[Assignment]], None]
) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    own = schedules.run_now(schedule.pk, actor=ANA, payload={"url": "https://example.com/2"}, kind="http")
    world.execute()
    (message,) = world.messages()
    given = worker.start_runs(message.args[1])
    schedules.change_schedule(schedule.pk, MESSAGE, actor=ANA)
    end(world, given)
    world.go()
    assert world.statuses(schedule) == ["succeeded"]
    assert [run.kind for run in world.runs(schedule)] == ["message", "http"]
    assert [assignment.run_id for assignment in world.note.done] == [own.pk]


def test_changed_kind_counts_when_a_failed_run_is_retried(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.go()
    schedules.change_schedule(schedule.pk, MESSAGE, actor=ANA)
    assert world.run(schedule).kind == "http"
    actions.retry_run(world.run(schedule).pk, actor=ANA)
    world.go()
    assert (world.statuses(schedule), world.run(schedule).kind) == (["succeeded"], "message")


def test_a_change_decided_on_another_version_is_refused(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    schedules.change_schedule(schedule.pk, {"name": "Other"}, actor=ANA, version=1)
    with pytest.raises(Conflict) as refused:
        schedules.pause_schedule(schedule.pk, actor=ANA, version=1)
    assert refused.value.conflict["version"] == 2
    assert refused.value.conflict["by"]["label"] == "Ana Dispatcher"
    assert refused.value.conflict["did"] == "changed"


def test_nothing_can_be_done_to_a_deleted_one(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    schedules.delete_schedule(schedule.pk, actor=ANA)
    for act in (schedules.pause_schedule, schedules.resume_schedule, schedules.run_now):
        with pytest.raises(schedules.NotInThisStatus):
            act(schedule.pk, actor=ANA)
    with pytest.raises(schedules.NotInThisStatus):
        schedules.change_schedule(schedule.pk, {"name": "x"}, actor=ANA)


def test_run_now_runs_one_more_and_leaves_the_next_where_it_is(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    next_at = world.again(schedule).next_at
    run = schedules.run_now(schedule.pk, actor=ANA)
    world.go()
    assert Run.objects.get(pk=run.pk).status == "succeeded"
    assert Run.objects.get(pk=run.pk).number is None
    assert world.again(schedule).next_at == next_at
    assert world.again(schedule).occurrences == 1


def test_run_now_runs_also_what_is_paused(world: World) -> None:
    schedule = world.schedule(every=1, unit="day")
    schedules.pause_schedule(schedule.pk, actor=ANA)
    run = schedules.run_now(schedule.pk, actor=ANA)
    world.go()
    assert Run.objects.get(pk=run.pk).status == "succeeded"


def test_failed_run_is_retried_manually(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now(), retry_schedule_s=[])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.go()
    run = world.run(schedule)
    actions.retry_run(run.pk, actor=ANA)
    world.go()
    assert world.run(schedule).status == "succeeded"
    with pytest.raises(schedules.NotInThisStatus):
        actions.retry_run(run.pk, actor=ANA)


def test_cancel_queued_run_keeps_the_next_run(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute")
    world.travel(60)
    world.execute()
    actions.cancel_run(world.run(schedule, 1).pk, actor=ANA)
    world.go()
    assert world.note.done == []
    with pytest.raises(schedules.NotInThisStatus):
        actions.cancel_run(world.run(schedule, 2).pk, actor=ANA)
    assert world.statuses(schedule) == ["cancelled", "scheduled"]


def test_pausing_a_failing_schedule_resolves_its_alert(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[])
    world.note.answers = [Outcome(FAILED, error="x")]
    world.travel(3600)
    world.go()
    schedules.pause_schedule(schedule.pk, actor=ANA)
    assert world.told(schedule) == ["created", "failing", "recovered", "paused"]
    assert world.again(schedule).failures == 0


def test_constraints_reject_second_next_run_and_duplicate_occurrence(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    of = {"organization": world.organization, "schedule": schedule, "kind": "http", "shard": 1}
    with pytest.raises(IntegrityError, match="one_next_run_per_schedule"), transaction.atomic():
        Run.objects.create(number=2, trigger_at=clock.now(), **of)
    with pytest.raises(IntegrityError, match="one_run_per_occurrence"), transaction.atomic():
        Run.objects.create(number=1, trigger_at=clock.now(), status="missed", ended_at=clock.now(), **of)
    with pytest.raises(IntegrityError, match="schedule_has_one_timing"), transaction.atomic():
        Schedule.objects.filter(pk=schedule.pk).update(cron="0 9 * * *")


def test_only_old_finished_runs_are_deleted(world: World) -> None:
    from dispatch.schedules.services.retention import delete_expired_runs

    schedule = world.schedule(every=1, unit="day", missed="all")
    for _ in range(3):
        world.travel(86_400)
        world.go()
    before = clock.now() - timedelta(days=1, hours=12)
    other = factories.organization()
    assert delete_expired_runs(other.pk, before, 100) == 0
    assert delete_expired_runs(world.organization.pk, before, 100) == 1
    assert world.statuses(schedule) == ["succeeded", "succeeded", "scheduled"]


def test_ended_schedule_is_deleted_after_its_runs(world: World) -> None:
    from dispatch.schedules.services.retention import delete_expired_runs, delete_expired_schedules

    ours = world.organization.pk
    once = world.schedule("Once", trigger_at=clock.now())
    deleted = world.schedule("Deleted", every=1, unit="day")
    paused = world.schedule("Paused", every=1, unit="day")
    schedules.pause_schedule(paused.pk, actor=ANA)
    schedules.delete_schedule(deleted.pk, actor=ANA)
    world.go()
    world.travel(100 * 86_400)
    assert delete_expired_schedules(ours, clock.now(), 100) == 0  # their runs are there
    assert delete_expired_runs(ours, clock.now(), 100) == 2
    late = schedules.run_now(once.pk, actor=ANA)
    assert delete_expired_schedules(ours, world.again(deleted).changed_at, 100) == 0  # not old enough
    assert delete_expired_schedules(factories.organization().pk, clock.now(), 100) == 0
    assert delete_expired_schedules(ours, clock.now(), 100) == 1
    assert set(Schedule.objects.values_list("name", flat=True)) == {"Once", "Paused"}
    world.go()
    assert Run.objects.get(pk=late.pk).status == "succeeded"


def test_old_runs_are_found_without_those_of_other_organizations(world: World) -> None:
    """An organization that keeps its runs forever must not slow down the deletion of others."""
    schedule, elsewhere = world.schedule(every=1, unit="day"), factories.organization()
    added = """
        INSERT INTO schedules_run (organization_id, schedule_id, kind, shard, number, trigger_at, status, attempt,
                                   epoch, lapses, waiting_for, ended_at, error, created_at)
        SELECT %s, %s, 'note', 0, %s + n, now(), 'missed', 1, 0, 0, '', now() - %s * interval '1 day', '', now()
        FROM generate_series(1, 3000) n
    """
    with connection.cursor() as cursor:
        cursor.execute(added, [schedule.organization_id, schedule.pk, 10_000, 1])
        cursor.execute(added, [elsewhere.pk, schedule.pk, 20_000, 400])
        cursor.execute("ANALYZE schedules_run")
    old = Run.objects.of(schedule.organization_id).filter(ended_at__lt=clock.now() - timedelta(days=90))
    plan = old.order_by("ended_at").values_list("pk", flat=True)[:100].explain()
    Run.objects.filter(status="missed").delete()
    assert "run_ended_of_organization" in plan, plan
