"""A changed time zone keeps the time on the clock; changed rules of a zone move the runs that wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from accounts.models import time_zones as all_zones
from dispatch.core import clock
from dispatch.schedules.models import Run, Schedule, ZoneRules
from dispatch.schedules.services import calendars, schedules, time_zones
from dispatch.schedules.services.retention import delete_expired_runs
from dispatch.schedules.services.time_zones import ZoneWalk
from tests.api.client import Api
from tests.harness.schedules import ANA, World
from tests.schedules.test_calendars import day, ics
from tests.support import factories

DENVER, NEW_YORK = "America/Denver", "America/New_York"


@pytest.fixture(autouse=True)
def two_zones(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Let the process know these zones with these rules."""
    digests = {DENVER: "1", NEW_YORK: "1"}
    monkeypatch.setattr(time_zones, "zone_digests", lambda: digests)
    return digests


def wall(schedule: Schedule, zone: str) -> str:
    assert schedule.next_at is not None
    return f"{schedule.next_at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}"


@pytest.mark.parametrize("has_start", [True, False])
@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_an_interval_keeps_its_time_on_the_clock_in_another_zone(world: World, has_start: bool, unit: str) -> None:
    world.travel_to(world.at("2027-01-10 09:00", DENVER))
    start = {"starts_at": clock.now()} if has_start else {}
    schedule = world.schedule(every=1, unit=unit, time_zone=DENVER, **start)
    world.go()
    before = wall(world.again(schedule), DENVER)
    api = Api(key=factories.api_key(world.organization))
    assert api.patch(f"schedules/{schedule.pk}/", {"time_zone": NEW_YORK}).status_code == 200
    found = world.again(schedule)
    assert before.endswith("09:00")
    assert wall(found, NEW_YORK) == before
    assert api.get(f"schedules/{schedule.pk}/").json()["when"].count("09:00") == 1
    world.travel_to(found.next_at)
    world.go()
    assert wall(world.again(schedule), NEW_YORK).endswith("09:00")


def test_a_start_given_with_the_zone_counts(world: World) -> None:
    schedule = world.schedule(every=1, unit="day", time_zone=DENVER)
    starts_at = clock.now() + timedelta(days=2)
    schedules.change_schedule(schedule.pk, {"time_zone": NEW_YORK, "starts_at": starts_at}, actor=ANA)
    assert world.again(schedule).next_at == starts_at


def shifted(world: World, hours: int, **fields: Any) -> Schedule:
    """Create a schedule whose next run was computed from rules that differ by some hours."""
    schedule = world.schedule(**fields)
    before = schedule.next_at + timedelta(hours=hours)
    Schedule.objects.filter(pk=schedule.pk).update(next_at=before)
    Run.objects.filter(schedule=schedule).update(trigger_at=before, due_at=before)
    return schedule


def walked() -> ZoneWalk:
    walk = ZoneWalk()
    while walk.step() is not None:
        pass
    return walk


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("timing", [{"cron": "0 9 * * *"}, {"every": 1, "unit": "day"}])
def test_new_rules_of_a_zone_move_its_waiting_runs(
    world: World, two_zones: dict[str, str], hours: int, timing: dict[str, Any]
) -> None:
    world.travel_to(world.at("2027-01-10 12:00", DENVER))
    walked()
    schedule = shifted(world, hours, time_zone=DENVER, **timing)
    other = shifted(world, hours, time_zone=NEW_YORK, **timing)
    walked()
    assert world.again(schedule).next_at == schedule.next_at + timedelta(hours=hours)
    two_zones[DENVER] = "2"
    walked()
    assert world.again(schedule).next_at == schedule.next_at
    assert world.run(schedule).due_at == schedule.next_at
    assert world.told(schedule) == ["created", "moved"]
    assert world.again(other).next_at == other.next_at + timedelta(hours=hours)
    assert ZoneRules.objects.get(pk=DENVER).digest == "2"
    walked()
    assert world.told(schedule) == ["created", "moved"]


def test_new_rules_leave_elapsed_time_due_runs_and_pauses(world: World, two_zones: dict[str, str]) -> None:
    world.travel_to(world.at("2027-01-10 12:00", DENVER))
    walked()
    elapsed = shifted(world, 1, every=6, unit="hour", time_zone=DENVER)
    due = shifted(world, -30, cron="0 9 * * *", time_zone=DENVER)
    paused = shifted(world, 1, cron="0 9 * * *", time_zone=DENVER)
    schedules.pause_schedule(paused.pk, actor=ANA)
    two_zones[DENVER] = "2"
    walked()
    assert world.again(elapsed).next_at == elapsed.next_at + timedelta(hours=1)
    assert world.again(due).next_at == due.next_at - timedelta(hours=30)
    assert (world.again(paused).next_at, world.run(paused).due_at) == (paused.next_at, None)


def test_new_rules_make_up_for_no_occurrence_whose_run_was_deleted(
    world: World, two_zones: dict[str, str]
) -> None:
    world.travel_to(world.at("2027-01-10 12:00", DENVER))
    walked()
    schedule = world.schedule(every=1, unit="year", time_zone=DENVER, missed="all", max_occurrences=4)
    for year in (2028, 2029):
        world.travel_to(world.at(f"{year}-01-10 12:00", DENVER))
        world.go()
    world.travel_to(world.at("2029-06-10 12:00", DENVER))
    assert delete_expired_runs(world.organization.pk, clock.now() - timedelta(days=90), 10) == 2
    two_zones[DENVER] = "2"
    walked()
    assert wall(world.again(schedule), DENVER) == "2030-01-10 12:00"
    assert world.told(schedule) == ["created"]


def test_new_rules_make_up_for_no_occurrence_of_a_stretch(world: World, two_zones: dict[str, str]) -> None:
    world.travel_to(world.at("2027-01-10 12:00", DENVER))
    walked()
    schedule = world.schedule(cron="0 9 * * *", time_zone=DENVER, missed="skip")
    world.travel_to(world.at("2027-01-15 12:00", DENVER))
    world.go()
    assert [run.stretch_count for run in world.runs(schedule)] == [5, 1]
    two_zones[DENVER] = "2"
    walked()
    assert wall(world.again(schedule), DENVER) == "2027-01-16 09:00"
    assert world.told(schedule) == ["created"]


def away_on(world: World, date: str) -> int:
    """Create a calendar that excludes this day, and return its id."""
    return calendars.create_calendar(world.organization.pk, "Away", content=ics(day(date)), actor=ANA).pk


def test_new_rules_make_up_for_no_occurrence_that_a_calendar_had_excluded(
    world: World, two_zones: dict[str, str]
) -> None:
    world.travel_to(world.at("2027-01-01 12:00", DENVER))
    walked()
    away = away_on(world, "20270108")
    schedule = world.schedule(
        cron="0 9 * * FRI", time_zone=DENVER, missed="last", missed_after_s=10**6, exclude_calendars=[away]
    )
    world.travel_to(world.at("2027-01-10 12:00", DENVER))
    calendars.change_calendar(away, {"content": ics(day("20270212"))}, actor=ANA)
    calendars.apply_calendar(away)
    assert wall(world.again(schedule), DENVER) == "2027-01-15 09:00"
    two_zones[DENVER] = "2"
    walked()
    assert wall(world.again(schedule), DENVER) == "2027-01-15 09:00"


def test_new_rules_make_up_for_the_hour_that_they_moved_despite_a_calendar(
    world: World, two_zones: dict[str, str]
) -> None:
    world.travel_to(world.at("2027-01-14 12:00", DENVER))
    walked()
    away = away_on(world, "20271225")
    schedule = shifted(world, 1, cron="0 9 * * *", time_zone=DENVER, exclude_calendars=[away])
    world.travel_to(world.at("2027-01-15 09:30", DENVER))
    two_zones[DENVER] = "2"
    walked()
    world.go()
    assert world.statuses(schedule) == ["succeeded", "scheduled"]


def test_all_schedules_are_walked_in_batches(
    world: World, two_zones: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_zones, "BATCH", 2)
    walked()
    found = [shifted(world, 1, cron="0 9 * * *", time_zone=DENVER) for _ in range(5)]
    two_zones[DENVER] = "2"
    walked()
    assert [world.again(schedule).next_at for schedule in found] == [schedule.next_at for schedule in found]


def test_unreadable_headers_and_a_failing_schedule_stop_no_walk(
    world: World, two_zones: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    walked()
    unreadable, failing, last = (shifted(world, 1, cron="0 9 * * *", time_zone=DENVER) for _ in range(3))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE schedules_schedule SET headers = 'gAAAA-bad' WHERE id = %s", [unreadable.pk])
    two_zones[DENVER] = "2"
    move = time_zones.move_next_run

    def fail(schedule_id: int) -> bool:
        if schedule_id == failing.pk:
            raise RuntimeError("on purpose")
        return move(schedule_id)

    with monkeypatch.context() as patched:
        patched.setattr(time_zones, "move_next_run", fail)
        walked()
    times = Schedule.objects.order_by("pk").values_list("next_at", flat=True)
    assert list(times) == [unreadable.next_at, failing.next_at + timedelta(hours=1), last.next_at]
    walked()  # the zone is not done before all have moved
    assert list(times.all()) == [unreadable.next_at, failing.next_at, last.next_at]
    assert ZoneRules.objects.get(pk=DENVER).digest == "2"


def test_every_zone_has_rules() -> None:
    found = {zone: time_zones.rules_of(zone) for zone in all_zones()}
    assert {rules[:4] for rules in found.values()} == {b"TZif"}
    assert found[DENVER] != found[NEW_YORK]
