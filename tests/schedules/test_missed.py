"""After an outage of hours: run all, run the last, skip all. Overlap. Pauses."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.schedules.models import Run
from dispatch.schedules.services import schedules
from dispatch.schedules.services.executor import claim_due_runs
from tests.harness.schedules import ALL, ANA, World

OUTAGE_S = 5 * 3600 + 60


@pytest.fixture
def hourly(world: World):  # type: ignore[no-untyped-def]
    """A schedule at every full hour, and an outage from 09:30 to 14:31."""

    def make(**fields: object):  # type: ignore[no-untyped-def]
        world.travel_to("2026-12-01 09:30")
        made = world.schedule(cron="0 * * * *", time_zone="UTC", missed_after_s=300, **fields)
        world.travel(OUTAGE_S)
        return made

    return make


def hours(world: World) -> list[int]:
    return [one.hour for one in world.note.times]


def test_run_all_runs_every_missed_one_in_order(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="all")
    world.go()
    assert hours(world) == [10, 11, 12, 13, 14]
    assert world.statuses(schedule) == ["succeeded"] * 5 + ["scheduled"]
    assert world.again(schedule).next_at == world.at("2026-12-01 15:00")


def test_run_all_without_overlap_runs_them_one_after_another(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="all", overlap="skip")
    world.execute()
    assert world.statuses(schedule) == ["in_progress", "scheduled"]
    assert world.run(schedule, 2).waiting_for == "earlier"
    world.work()
    world.settle()  # its end wakes the one that waits
    assert world.execute() == 1
    world.go()
    assert hours(world) == [10, 11, 12, 13, 14]
    assert world.statuses(schedule) == ["succeeded"] * 5 + ["scheduled"]


def test_policy_last_runs_one_and_records_the_others(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="last")
    world.go()
    assert hours(world) == [14]
    assert world.statuses(schedule) == ["missed"] * 4 + ["succeeded", "scheduled"]
    assert world.run(schedule, 1).error.startswith("Not started in time")
    assert world.told(world.run(schedule, 1)) == ["missed"]


def test_policy_skip_continues_with_the_next_run(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip")
    world.go()
    assert hours(world) == []
    assert world.statuses(schedule) == ["missed"] * 5 + ["scheduled"]
    world.travel(1800)
    world.go()
    assert hours(world) == [15]


def test_slightly_late_run_is_not_missed(world: World) -> None:
    world.travel_to("2026-12-01 09:30")
    world.schedule(cron="0 * * * *", time_zone="UTC", missed="skip", missed_after_s=300)
    world.travel(1800 + 150)
    world.go()
    assert hours(world) == [10]


def test_single_run_is_executed_late_unless_policy_is_skip(world: World) -> None:
    late = world.schedule(trigger_at=clock.now() + timedelta(minutes=1), missed="last")
    gone = world.schedule(trigger_at=clock.now() + timedelta(minutes=1), missed="skip")
    world.travel(86_400)
    world.go()
    assert world.statuses(late) == ["succeeded"]
    assert world.statuses(gone) == ["missed"]
    assert world.again(gone).status == "ended"


def test_a_long_outage_of_a_frequent_one_is_worked_off_in_steps(world: World) -> None:
    world.travel_to("2026-12-01 00:00")
    schedule = world.schedule(cron="* * * * *", time_zone="UTC", missed="skip", missed_after_s=30)
    world.travel(10 * 3600)
    world.execute()
    counted = Run.objects.filter(schedule=schedule)
    assert counted.filter(status="missed").count() == 599
    assert counted.filter(status="in_progress").get().number == 600
    assert world.again(schedule).occurrences == 601


def test_the_last_of_very_many_is_the_very_last(world: World) -> None:
    world.travel_to("2026-12-01 00:00")
    schedule = world.schedule(cron="* * * * *", time_zone="UTC", missed="last", missed_after_s=60)
    world.travel(10 * 3600)
    world.go()
    assert world.note.times == [world.at("2026-12-01 10:00")]
    assert world.statuses(schedule)[-2:] == ["succeeded", "scheduled"]


def test_missed_occurrences_count_towards_their_number(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip", max_occurrences=3)
    world.go()
    assert world.statuses(schedule) == ["missed"] * 3
    assert world.again(schedule).status == "ended"


# --- Overlap
# -------------------------------------------------------------------------------------------------------


def test_an_occurrence_is_skipped_while_the_one_before_runs(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="skip")
    world.travel(60)
    world.execute()
    world.travel(60)
    world.execute()
    assert world.statuses(schedule) == ["in_progress", "skipped", "scheduled"]
    assert world.run(schedule, 2).error == "An earlier run had not ended."
    world.work()
    world.settle()
    world.travel(60)
    world.go()
    assert world.statuses(schedule) == ["succeeded", "skipped", "succeeded", "scheduled"]


def test_a_run_that_waits_for_its_retry_has_not_ended(world: World) -> None:
    from dispatch.schedules.kinds.base import Outcome

    schedule = world.schedule(every=1, unit="minute", overlap="skip", retry_schedule_s=[600])
    world.note.answers = [Outcome("failed", error="x")]
    world.travel(60)
    world.go()
    world.travel(60)
    world.go()
    assert world.statuses(schedule) == ["retrying", "skipped", "scheduled"]


def test_where_overlap_is_allowed_both_run(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", overlap="allow")
    for _ in range(2):
        world.travel(60)
        world.execute()
    assert world.statuses(schedule) == ["in_progress", "in_progress", "scheduled"]


def test_manual_run_waits_for_the_previous_run(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", overlap="skip")
    world.travel(3600)
    world.execute()
    by_hand = schedules.run_now(schedule.pk, actor=ANA)
    world.execute()
    assert Run.objects.get(pk=by_hand.pk).waiting_for == "earlier"
    world.go()
    assert Run.objects.get(pk=by_hand.pk).status == "succeeded"


# --- Pauses
# --------------------------------------------------------------------------------------------------------


def test_runs_due_during_a_pause_are_skipped(world: World) -> None:
    world.travel_to("2026-12-01 09:30")
    schedule = world.schedule(cron="0 * * * *", time_zone="UTC", missed="all")
    schedules.pause_schedule(schedule.pk, actor=ANA)
    world.go_until("2026-12-01 12:30", step_s=1800)
    assert world.note.done == []
    schedules.resume_schedule(schedule.pk, actor=ANA)
    world.go()
    assert world.statuses(schedule) == ["skipped", "skipped", "skipped", "scheduled"]
    assert world.run(schedule, 1).error == "The schedule was paused."
    world.go_until("2026-12-01 13:01", step_s=1800)
    assert hours(world) == [13]


def test_a_retry_waits_for_the_end_of_the_pause(world: World) -> None:
    from dispatch.schedules.kinds.base import Outcome

    schedule = world.schedule(every=1, unit="day", retry_schedule_s=[60])
    world.note.answers = [Outcome("failed", error="x")]
    world.travel(86_400)
    world.execute()
    world.work()
    schedules.pause_schedule(schedule.pk, actor=ANA)
    world.settle()
    world.travel(3600)
    world.go()
    assert world.run(schedule).status == "retrying"
    schedules.resume_schedule(schedule.pk, actor=ANA)
    world.go()
    assert world.run(schedule).status == "succeeded"


def test_a_pause_that_is_over_before_the_next_time_changes_nothing(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    at = world.again(schedule).next_at
    schedules.pause_schedule(schedule.pk, actor=ANA)
    schedules.resume_schedule(schedule.pk, actor=ANA)
    assert world.run(schedule).due_at == at
    world.travel(3600)
    world.go()
    assert world.statuses(schedule) == ["succeeded", "scheduled"]


def test_what_is_due_now_does_not_wait_behind_what_was_missed(world: World) -> None:
    for n in range(12):
        world.schedule(f"frequent {n}", every=10, unit="second", missed="skip")
    now = world.schedule("now", trigger_at=clock.now() + timedelta(days=1))
    world.travel(24 * 3600 + 1)
    claim_due_runs(ALL, 4)
    assert world.statuses(now) == ["in_progress"]
