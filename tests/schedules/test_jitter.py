"""Jitter delays each occurrence by a time that is always the same, within bounds, and is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.core import clock
from dispatch.schedules.api.timings import occurrences_of
from dispatch.schedules.rules.due import Due, Plan, Policy, Verdict, plan_due_run
from dispatch.schedules.rules.jitter import jitter_of
from dispatch.schedules.rules.recurrence import Timing
from dispatch.schedules.services import schedules
from tests.api.client import Api
from tests.harness.schedules import ANA, World
from tests.support import factories

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
HOUR, HALF = timedelta(hours=1), timedelta(minutes=30)


@settings(max_examples=30)
@given(st.integers(1, 2**62), st.integers(0, 86_400), st.datetimes(timezones=st.just(UTC)))
def test_jitter_is_bounded_and_repeatable(schedule_id: int, jitter_s: int, at: datetime) -> None:
    found = jitter_of(schedule_id, at, jitter_s)
    assert timedelta() <= found <= timedelta(seconds=jitter_s)
    assert jitter_of(schedule_id, at, jitter_s) == found


def test_jitter_spreads_schedules_and_occurrences() -> None:
    of_schedules = {jitter_of(n, NOON, 3600) for n in range(1000)}
    of_days = {jitter_of(7, NOON + timedelta(days=n), 3600) for n in range(1000)}
    for found in (of_schedules, of_days):
        assert len(found) > 990
        quarters = {int(one.total_seconds() // 900) for one in found}
        assert quarters == {0, 1, 2, 3}


def test_a_run_is_due_after_its_jitter_and_the_next_has_another(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour", jitter_s=600, missed="skip", missed_after_s=120)
    for _ in range(3):
        run = world.runs(schedule, "scheduled")[0]
        assert run.due_at == schedule.due_at(run.trigger_at) > run.trigger_at
        world.travel_to(run.due_at - timedelta(seconds=60))
        assert world.execute() == 0
        world.travel_to(run.due_at)
        world.go()
        assert world.run(schedule, run.number).status == "succeeded"
    assert world.again(schedule).next_at - schedule.next_at == timedelta(hours=3)


def test_a_changed_jitter_moves_the_waiting_run(world: World) -> None:
    schedule = world.schedule(every=1, unit="hour")
    schedules.change_schedule(schedule.pk, {"jitter_s": 600}, actor=ANA)
    found, run = world.again(schedule), world.run(schedule)
    assert (run.trigger_at, run.due_at) == (schedule.next_at, found.due_at(run.trigger_at))
    schedules.pause_schedule(schedule.pk, actor=ANA)
    schedules.change_schedule(schedule.pk, {"jitter_s": 300}, actor=ANA)
    assert world.run(schedule).due_at is None
    schedules.resume_schedule(schedule.pk, actor=ANA)
    assert world.run(schedule).due_at == world.again(schedule).due_at(run.trigger_at)


def test_a_new_jitter_and_zone_move_the_run_of_a_single_time(world: World) -> None:
    schedule = world.schedule(trigger_at=clock.now() + HOUR)
    assert world.run(schedule).due_at == schedule.trigger_at
    schedules.change_schedule(schedule.pk, {"time_zone": "UTC", "jitter_s": 86_400}, actor=ANA)
    found, run = world.again(schedule), world.run(schedule)
    assert (run.trigger_at, run.due_at) == (schedule.trigger_at, found.due_at(run.trigger_at))


def plan(now: datetime, missed: str = "last", overlap: str = "allow", **more: Any) -> Plan:
    """Plan the occurrence at noon of an hourly schedule whose occurrences are all half an hour late by jitter."""
    timing = Timing("UTC", every=1, unit="hour", anchor=NOON)
    due = Due(NOON, 1, has_waited=more.pop("has_waited", False), jitter=lambda at: HALF)
    return plan_due_run(timing, Policy(missed, 300, overlap, **more), due, now, has_open=False)


def count_skipped(found: Plan) -> int:
    return found.own.count if found.own else 0


def test_occurrences_that_are_not_due_yet_are_not_missed() -> None:
    ahead, passed = NOON + HOUR + timedelta(minutes=10), NOON + HOUR + timedelta(minutes=40)
    found = plan(ahead, "skip")
    assert (found.verdict, count_skipped(found), found.next) == (Verdict.SKIP, 1, (2, NOON + HOUR))
    assert found.own is not None
    assert found.own.reason == "Not started in time; 40 minutes late."
    assert count_skipped(plan(passed, "skip")) == 2
    found = plan(ahead, "last")
    assert (found.verdict, found.own, found.next) == (Verdict.RUN, None, (2, NOON + HOUR))
    found = plan(passed, "last")
    assert (found.verdict, count_skipped(found), found.next) == (Verdict.SKIP, 1, (2, NOON + HOUR))


def test_occurrences_that_are_due_after_a_pause_are_run() -> None:
    assert plan(NOON + HALF, paused_until=NOON + timedelta(minutes=10)).verdict is Verdict.RUN
    found = plan(NOON + HOUR + HALF, paused_until=NOON + HOUR + timedelta(minutes=10))
    assert (found.verdict, count_skipped(found), found.next) == (Verdict.SKIP, 1, (2, NOON + HOUR))


def test_occurrences_that_are_not_due_yet_did_not_pass_while_one_waited() -> None:
    found = plan(NOON + HOUR + timedelta(minutes=10), overlap="buffer_one", has_waited=True)
    assert (found.verdict, found.passed, found.next) == (Verdict.RUN, None, (2, NOON + HOUR))
    found = plan(NOON + HOUR + timedelta(minutes=40), overlap="buffer_one", has_waited=True)
    assert (found.passed and (found.passed.number, found.passed.count), found.next) == (
        (2, 1),
        (3, NOON + 2 * HOUR),
    )


def test_the_status_shows_the_jitter(world: World) -> None:
    api = Api(key=factories.api_key(world.organization))
    schedule = world.schedule(every=1, unit="hour", jitter_s=600)
    found = api.get(f"schedules/{schedule.pk}/").json()
    assert found["jitter_s"] == 600
    assert datetime.fromisoformat(found["next"][0]["due_at"]) == world.run(schedule).due_at
    for one in occurrences_of(schedule):
        assert one["due_at"] == schedule.due_at(one["at"])


@pytest.mark.parametrize(
    ("timing", "is_allowed"),
    [
        ({"every": 1, "unit": "hour"}, False),
        ({"every": 2, "unit": "hour"}, True),
        ({"cron": "0 9,10 * * *"}, False),
        ({"cron": "0 9 * * *"}, True),
        ({"trigger_at": NOON.isoformat()}, True),
    ],
)
def test_jitter_is_not_longer_than_the_time_between_occurrences(
    world: World, timing: dict[str, Any], is_allowed: bool
) -> None:
    world.travel_to(NOON - timedelta(days=1))
    api = Api(key=factories.api_key(world.organization))
    body = {"name": "x", "kind": "http", "payload": {"url": "https://example.com/"}, "jitter_s": 7000, **timing}
    answer = api.post("schedules/", body)
    assert answer.status_code == (201 if is_allowed else 400), answer.content
    if not is_allowed:
        assert answer.json()["errors"][0]["field"] == "jitter_s"


def test_a_shorter_interval_is_refused_with_its_jitter(world: World) -> None:
    api = Api(key=factories.api_key(world.organization))
    schedule = world.schedule(every=1, unit="day", jitter_s=7000)
    assert api.patch(f"schedules/{schedule.pk}/", {"unit": "hour"}).status_code == 400
    assert api.patch(f"schedules/{schedule.pk}/", {"unit": "hour", "jitter_s": 60}).status_code == 200
    assert api.patch(f"schedules/{schedule.pk}/", {"jitter_s": 3601}).status_code == 400
    assert world.run(schedule).due_at > clock.now()
