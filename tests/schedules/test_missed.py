"""After an outage of hours: run all, run the last, skip all. Overlap. Pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.console.schedules.calendar import month_of
from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.models import Event
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules import stretches
from dispatch.schedules.rules.recurrence import ELAPSED_S, Timing, next_after, occurrences
from dispatch.schedules.services import backfill, executor, schedules
from dispatch.schedules.services.executor import claim_due_runs
from tests.api.client import Api
from tests.harness.schedules import ALL, ANA, World
from tests.support import factories

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


def stretch(world: World, schedule: Schedule, number: int = 1) -> tuple[int, datetime, datetime | None]:
    run = world.run(schedule, number)
    return run.stretch_count, run.trigger_at, run.stretch_last_at


def test_policy_last_runs_one_and_records_the_others(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="last")
    world.go()
    assert hours(world) == [14]
    assert world.statuses(schedule) == ["missed", "succeeded", "scheduled"]
    assert stretch(world, schedule) == (4, world.at("2026-12-01 10:00"), world.at("2026-12-01 13:00"))
    assert world.run(schedule, 5).status == "succeeded"
    assert world.run(schedule, 1).error.startswith("Not started in time")
    assert world.told(world.run(schedule, 1)) == ["missed"]


def test_policy_skip_continues_with_the_next_run(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip")
    world.go()
    assert hours(world) == []
    assert world.statuses(schedule) == ["missed", "scheduled"]
    assert stretch(world, schedule) == (5, world.at("2026-12-01 10:00"), world.at("2026-12-01 14:00"))
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


def test_a_long_outage_of_a_frequent_one_is_one_row(world: World) -> None:
    world.travel_to("2026-12-01 00:00")
    schedule = world.schedule(cron="* * * * *", time_zone="UTC", missed="skip", missed_after_s=30)
    world.travel(10 * 3600)
    world.execute()
    counted = Run.objects.filter(schedule=schedule)
    assert counted.get(status="missed").stretch_count == 599
    assert counted.filter(status="in_progress").get().number == 600
    assert world.again(schedule).occurrences == 601


def test_the_last_of_very_many_is_the_very_last(world: World) -> None:
    world.travel_to("2026-12-01 00:00")
    schedule = world.schedule(cron="* * * * *", time_zone="UTC", missed="last", missed_after_s=60)
    world.travel(10 * 3600)
    world.go()
    assert world.note.times == [world.at("2026-12-01 10:00")]
    assert world.statuses(schedule) == ["missed", "succeeded", "scheduled"]


def test_missed_occurrences_count_towards_their_number(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip", max_occurrences=3)
    world.go()
    assert world.statuses(schedule) == ["missed"]
    assert world.run(schedule).stretch_count == 3
    assert (world.again(schedule).status, world.again(schedule).occurrences) == ("ended", 3)


def test_a_day_of_many_frequent_schedules_is_few_rows(world: World) -> None:
    frequent = [world.schedule(f"{n}", every=10, unit="second", missed="last") for n in range(20)]
    world.travel(86_400 + 5)
    world.execute()
    assert Run.objects.count() == 60  # each has a missed, a claimed and a next one
    assert Event.objects.filter(kind="run.missed").count() == 20
    assert world.run(frequent[0]).stretch_count == 8640 - 1


def test_a_stretch_says_so_in_its_event_and_in_the_api(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip")
    world.go()
    event = Event.objects.get(kind="run.missed")
    assert (event.data["occurrences"], event.data["last_at"]) == (5, "2026-12-01T14:00:00+00:00")
    api = Api(key=factories.api_key(world.organization))
    (found,) = api.get(f"runs/?schedule={schedule.pk}&status=missed").json()["results"]
    assert (found["number"], found["stretch_count"], found["stretch_last_at"]) == (1, 5, "2026-12-01T14:00:00Z")
    log = api.get(f"runs/{found['id']}/").json()["log"]
    assert "recorded 5 occurrences as missed" in log[0]["text"]


def test_a_pause_is_one_row_however_long(world: World) -> None:
    schedule = world.schedule(every=1, unit="second", missed="all")
    schedules.pause_schedule(schedule.pk, actor=ANA)
    world.travel(30 * 86_400)
    schedules.resume_schedule(schedule.pk, actor=ANA)
    world.execute()
    skipped = Run.objects.get(status="skipped")
    assert skipped.stretch_count == world.again(schedule).occurrences - 1
    assert skipped.stretch_last_at is not None
    assert skipped.stretch_last_at < clock.now()


def test_a_stretch_that_exceeds_the_limit_is_several_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "MAX_COMPUTED", 3)
    world.travel_to("2026-12-01 09:30")
    schedule = world.schedule(cron="0 * * * *", time_zone="UTC", missed="last")
    world.travel(10 * 3600)
    world.go()
    counts = Run.objects.filter(status="missed").order_by("number").values_list("number", "stretch_count")
    assert list(counts) == [(1, 3), (4, 3), (7, 3)]
    assert hours(world) == [19]
    assert world.statuses(schedule)[-2:] == ["succeeded", "scheduled"]


def test_planning_leaves_runs_to_the_next_batch_after_its_time(world: World, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(executor, "PLANNING_S", -1.0)
    for n in range(3):
        world.schedule(f"{n}", every=1, unit="minute")
    world.travel(60)
    assert claim_due_runs(ALL).taken == 1
    assert world.execute() == 2


@settings(max_examples=60, deadline=None)
@given(
    unit=st.sampled_from(["second", "minute", "hour", "day", "month"]),
    every=st.integers(1, 9),
    anchor_s=st.integers(0, 10_000),
    number=st.integers(1, 5),
    until_s=st.integers(0, 2_000_000),
    jitter=st.floats(0, 1),
    limit=st.none() | st.integers(1, 60),
    end_s=st.none() | st.integers(1, 1_500_000),
)
def test_arithmetic_counts_like_one_by_one(unit, every, anchor_s, number, until_s, jitter, limit, end_s) -> None:  # type: ignore[no-untyped-def]
    start = datetime(2026, 3, 1, tzinfo=UTC)
    timing = Timing(
        "America/New_York", every=every * (600 if unit == "second" else 1), unit=unit,
        anchor=start + timedelta(seconds=anchor_s), max_occurrences=limit,
        ends_at=start + timedelta(seconds=end_s) if end_s else None,
    )  # fmt: skip
    first = next_after(timing, start, number - 1)
    if first is None:
        return
    delay = jitter * timedelta(seconds=(every * ELAPSED_S[unit] if unit in ("minute", "hour") else 60))
    until = start + timedelta(seconds=until_s)
    times = [first]
    following = next_after(timing, first, number)
    while following is not None and following + delay < until:
        times.append(following)
        following = next_after(timing, following, number + len(times) - 1)
    found = stretches.measure_stretch(timing, first, number, until, lambda at: at + delay)
    assert (found.count, found.last, found.following) == (len(times), times[-1], following)
    assert found.before_last == (times[-2] if len(times) > 1 else None)


@pytest.mark.parametrize("cron", ["30 1 * * *", "*/20 * * * *", "0 2 * * SUN", "15 */2 * * *"])
@pytest.mark.parametrize("month", [3, 11])
def test_a_stretch_of_a_cron_expression_crosses_a_clock_change(cron: str, month: int) -> None:
    timing = Timing("America/New_York", cron=cron)
    start = datetime(2026, month, 1, tzinfo=UTC)
    until = start + timedelta(days=10)
    first = next_after(timing, start)
    assert first is not None
    times = list(takewhile(lambda at: at < until, occurrences(timing, start)))
    found = stretches.measure_stretch(timing, first, 1, until, lambda at: at)
    assert (found.count, found.last) == (len(times), times[-1])


# --- Backfill
# -------------------------------------------------------------------------------------------------------


def test_the_occurrences_of_a_missed_run_can_be_run(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip")
    world.go()
    missed = world.run(schedule)
    api = Api(key=factories.api_key(world.organization))
    made = api.post(f"runs/{missed.pk}/run-missed/")
    assert made.status_code == 202
    assert [one["number"] for one in made.json()] == [None] * 5
    world.go()
    assert hours(world) == [10, 11, 12, 13, 14]
    assert world.told(schedule)[-1] == "backfilled"
    assert api.post(f"runs/{made.json()[0]['id']}/run-missed/").status_code == 409


def test_a_range_is_previewed_and_run_in_order(world: World, hourly) -> None:  # type: ignore[no-untyped-def]
    schedule = hourly(missed="skip", overlap="skip", ends_at=datetime(2026, 12, 1, 12, tzinfo=UTC))
    world.go()
    api = Api(key=factories.api_key(world.organization))
    asked = {"since": "2026-12-01T11:00:00Z", "until": "2026-12-01T13:30:00Z"}
    found = api.post(f"schedules/{schedule.pk}/backfill/", {**asked, "preview": True}).json()
    assert (found["count"], found["is_whole"], found["run_ids"]) == (3, True, [])
    assert (found["first_at"], found["last_at"]) == ("2026-12-01T11:00:00Z", "2026-12-01T13:00:00Z")
    assert Run.objects.filter(number=None).count() == 0
    assert len(api.post(f"schedules/{schedule.pk}/backfill/", asked).json()["run_ids"]) == 3
    world.go()
    assert hours(world) == [11, 12, 13]
    backwards = {"since": asked["until"], "until": asked["since"]}
    assert api.post(f"schedules/{schedule.pk}/backfill/", backwards).status_code == 400


def test_a_range_is_bounded_and_ends_now(world: World) -> None:
    schedule = world.schedule(every=1, unit="minute", missed="skip")
    world.travel(2000 * 60)
    world.execute()
    found = backfill.preview_backfill(schedule, schedule.created_at, clock.now() + timedelta(days=1))
    assert (len(found.times), found.is_whole) == (backfill.MAX_BACKFILL, False)
    with pytest.raises(Conflict, match="More than 1,000"):
        backfill.run_range(schedule.pk, schedule.created_at, clock.now(), actor=ANA)
    assert Run.objects.filter(number=None).count() == 0
    now = clock.now()
    last = backfill.preview_backfill(schedule, now - timedelta(seconds=90), now + timedelta(days=1))
    assert len(last.times) in (1, 2)
    daily = world.schedule(cron="0 9 * * *", time_zone="Asia/Tokyo")
    found = backfill.preview_backfill(daily, datetime.min.replace(tzinfo=UTC), clock.now())
    assert (len(found.times), found.is_whole) == (backfill.MAX_BACKFILL, False)


def test_a_stretch_over_several_days_marks_each_in_the_calendar(world: World) -> None:
    world.travel_to("2026-12-01 20:00")
    world.schedule("Long", every=1, unit="hour", missed="skip", time_zone="UTC")
    world.schedule("Short", cron="0 17,18 1 12 *", missed="skip")
    world.travel(2 * 86_400)
    world.execute()
    month = month_of(world.organization, "2026-12")
    days = {day.date.day: day for week in month.weeks for day in week if day.in_month}
    assert [day for day in sorted(days) if "missed" in days[day].stretches] == [1, 2, 3]
    assert days[1].ran["missed"] == 2


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
    assert world.statuses(schedule) == ["skipped", "scheduled"]
    assert stretch(world, schedule)[0] == 3
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
