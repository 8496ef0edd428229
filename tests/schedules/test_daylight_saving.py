"""Clock changes from outside: what is executed while the test clock moves across them."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from tests.harness.schedules import World

NEW_YORK = "America/New_York"


def local(world: World) -> list[str]:
    return [f"{one.astimezone(ZoneInfo(NEW_YORK)):%m-%d %H:%M %Z}" for one in world.note.times]


def test_over_the_night_in_which_the_clocks_go_forward(world: World) -> None:
    world.travel_to(world.at("2027-03-13 12:00", NEW_YORK))
    schedule = world.schedule(cron="30 2 * * *", time_zone=NEW_YORK)
    world.go_until(world.at("2027-03-15 12:00", NEW_YORK), step_s=900)
    assert local(world) == ["03-14 03:00 EDT", "03-15 02:30 EDT"]
    assert world.statuses(schedule) == ["succeeded", "succeeded", "scheduled"]


def test_over_the_night_in_which_the_clocks_go_back(world: World) -> None:
    world.travel_to(world.at("2027-11-06 12:00", NEW_YORK))
    schedule = world.schedule(cron="30 1 * * *", time_zone=NEW_YORK)
    world.go_until(world.at("2027-11-08 12:00", NEW_YORK), step_s=900)
    assert local(world) == ["11-07 01:30 EDT", "11-08 01:30 EST"]
    assert world.statuses(schedule) == ["succeeded", "succeeded", "scheduled"]


def test_a_hourly_one_runs_twenty_five_times_that_day(world: World) -> None:
    world.travel_to(world.at("2027-11-07 00:00", NEW_YORK))
    world.schedule(cron="15 * * * *", time_zone=NEW_YORK)
    world.go_until(world.at("2027-11-08 00:00", NEW_YORK), step_s=1800)
    assert len(world.note.times) == 25


def test_through_the_months_on_the_31st(world: World) -> None:
    world.travel_to("2027-01-30 00:00")
    start = world.at("2027-01-31 09:00")
    world.schedule("by interval", every=1, unit="month", starts_at=start, time_zone="UTC")
    world.schedule("by cron", cron="0 9 31 * *", time_zone="UTC")
    world.go_until("2027-06-01 00:00", step_s=43_200)
    days = {name: [] for name in ("by interval", "by cron")}  # type: dict[str, list[str]]
    for one in world.note.done:
        days[one.schedule].append(f"{one.trigger_at:%m-%d}")
    assert days == {
        "by interval": ["01-31", "02-28", "03-31", "04-30", "05-31"],
        "by cron": ["01-31", "03-31", "05-31"],
    }


def test_on_a_leap_day(world: World) -> None:
    world.travel_to("2028-02-28 12:00")
    world.schedule(cron="0 9 29 2 *", time_zone="UTC")
    world.go_until("2028-03-02 00:00", step_s=21_600)
    assert world.note.times == [world.at("2028-02-29 09:00")]
