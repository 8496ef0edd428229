"""When a lead may be called in local time: across nights, holidays, stricter states and clock changes."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.leads.rules.calling_hours import Hours, PermissionCache, calling_permission, hours_of

CHICAGO, NEW_YORK, PHOENIX, LONDON = "America/Chicago", "America/New_York", "America/Phoenix", "Europe/London"
FEDERAL = hours_of("United States", [(day, time(8), time(21)) for day in range(7)])


def at(zone: str, text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    ("local", "open_"),
    [("07:59:59", False), ("08:00:00", True), ("20:59:59", True), ("21:00:00", False), ("03:00:00", False)],
)
def test_the_window_begins_with_its_first_second_and_ends_before_its_last(local, open_):
    assert calling_permission(at(CHICAGO, f"2026-11-20 {local}"), (CHICAGO,), (FEDERAL,)).open is open_


def test_too_early_waits_until_it_opens_and_says_what_is_closed():
    found = calling_permission(at(CHICAGO, "2026-11-20 06:30"), (CHICAGO,), (FEDERAL,))
    assert (found.open, found.closed_by, found.zone) == (False, "United States", CHICAGO)
    assert found.until == at(CHICAGO, "2026-11-20 08:00")


def test_every_plausible_zone_has_to_be_open():
    both = (CHICAGO, NEW_YORK)  # a number of area code 850
    assert not calling_permission(at(NEW_YORK, "2026-11-20 08:30"), both, (FEDERAL,)).open  # 7:30 in Pensacola
    assert not calling_permission(at(CHICAGO, "2026-11-20 20:30"), both, (FEDERAL,)).open  # 21:30 in Tallahassee
    waits = calling_permission(at(CHICAGO, "2026-11-20 20:30"), both, (FEDERAL,))
    assert waits.until == at(CHICAGO, "2026-11-21 08:00")


def test_a_night_window_runs_into_the_next_day_and_ends_there():
    night = hours_of("Nights", [(4, time(22), time(2))])  # Fridays 22:00 to 2:00
    assert calling_permission(at(CHICAGO, "2026-11-20 23:59"), (CHICAGO,), (night,)).open
    assert calling_permission(at(CHICAGO, "2026-11-21 01:59"), (CHICAGO,), (night,)).open
    assert not calling_permission(at(CHICAGO, "2026-11-21 02:00"), (CHICAGO,), (night,)).open
    assert calling_permission(at(CHICAGO, "2026-11-21 02:00"), (CHICAGO,), (night,)).until == at(
        CHICAGO, "2026-11-27 22:00"
    )


def test_a_weekend_waits_for_monday():
    week = hours_of("Campaign", [(day, time(9), time(17)) for day in range(5)])
    assert calling_permission(at(CHICAGO, "2026-11-20 17:00"), (CHICAGO,), (week, FEDERAL)).until == at(
        CHICAGO, "2026-11-23 09:00"
    )


def test_a_holiday_is_closed_all_day():
    closed = hours_of("Campaign", [(day, time(9), time(17)) for day in range(7)], closed=[date(2026, 11, 26)])
    assert calling_permission(at(CHICAGO, "2026-11-26 12:00"), (CHICAGO,), (closed,)).until == at(
        CHICAGO, "2026-11-27 09:00"
    )


def test_a_stricter_state_binds_from_its_date_to_its_date():
    florida = hours_of(
        "Florida", [(day, time(8), time(20)) for day in range(7)], since=date(2026, 7, 1), until=date(2026, 12, 31)
    )
    late = "20:30"
    assert calling_permission(at(NEW_YORK, f"2026-06-30 {late}"), (NEW_YORK,), (FEDERAL, florida)).open
    strict = calling_permission(at(NEW_YORK, f"2026-07-01 {late}"), (NEW_YORK,), (FEDERAL, florida))
    assert (strict.open, strict.closed_by) == (False, "Florida")
    assert calling_permission(at(NEW_YORK, f"2027-01-01 {late}"), (NEW_YORK,), (FEDERAL, florida)).open


def test_hours_that_never_open_say_so():
    found = calling_permission(at(CHICAGO, "2026-11-20 12:00"), (CHICAGO,), (hours_of("Never", []),))
    assert (found.open, found.until) == (False, None)


def test_windows_that_never_meet_say_so():
    morning = hours_of("Mornings", [(day, time(8), time(9)) for day in range(7)])
    far = ("Pacific/Auckland", LONDON)
    assert calling_permission(at(LONDON, "2026-11-20 08:30"), far, (morning,)).until is None


def test_without_a_zone_nothing_is_permitted():
    with pytest.raises(ValueError, match="time zone"):
        calling_permission(at(CHICAGO, "2026-11-20 12:00"), (), (FEDERAL,))


def test_morning_after_clocks_go_forward_opens_at_eight_new_time():
    before = at(CHICAGO, "2026-03-07 22:00")
    assert calling_permission(before, (CHICAGO,), (FEDERAL,)).until == datetime(
        2026, 3, 8, 13, tzinfo=UTC
    )  # 8:00 CDT


def test_an_opening_that_the_clocks_jump_over_opens_when_they_have_jumped():
    early = hours_of("Early", [(day, time(2, 30), time(5)) for day in range(7)])
    asked = at(CHICAGO, "2026-03-08 01:00")
    assert calling_permission(asked, (CHICAGO,), (early,)).until == datetime(
        2026, 3, 8, 8, tzinfo=UTC
    )  # 2:00 CST = 3:00 CDT


def test_the_hour_that_comes_twice_is_closed_again_when_its_wall_clock_is():
    half = hours_of("Half past", [(day, time(1, 30), time(5)) for day in range(7)])
    first = datetime(2026, 11, 1, 6, 45, tzinfo=UTC)  # 1:45 CDT
    again = datetime(2026, 11, 1, 7, 15, tzinfo=UTC)  # 1:15 CST
    ask = PermissionCache()
    assert ask(first, (CHICAGO,), (half,)).open
    assert not ask(again, (CHICAGO,), (half,)).open
    assert ask(again, (CHICAGO,), (half,)).until == datetime(2026, 11, 1, 7, 30, tzinfo=UTC)


def test_hours_without_an_opening_in_the_horizon_are_searched_again_later():
    days = frozenset(date(2026, 11, 20) + timedelta(days=n) for n in range(16))
    week = [(day, time(8), time(21)) for day in range(7)]
    ask, hours = PermissionCache(), (hours_of("Closed", week, days),)
    first = at(PHOENIX, "2026-11-20 12:00")
    assert ask(first, (PHOENIX,), hours) == ask(first, (PHOENIX,), hours)
    assert ask(first, (PHOENIX,), hours).until is None
    assert ask(first + timedelta(days=1), (PHOENIX,), hours).until == at(PHOENIX, "2026-12-06 08:00")


_times = st.times().map(lambda t: t.replace(second=0, microsecond=0))
_weeks = st.lists(st.tuples(st.integers(0, 6), _times, _times), min_size=1, max_size=6)
_moments = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
_ODD = ["Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Auckland"]
_some = st.sampled_from([CHICAGO, NEW_YORK, PHOENIX, LONDON, *_ODD])
_zones = st.lists(_some, min_size=1, max_size=3, unique=True).map(tuple)


def _by_the_wall_clock(moment: datetime, zones: tuple[str, ...], week: list[tuple[int, time, time]]) -> bool:
    """Decide the same in a different way: with days and wall-clock times instead of spans of seconds."""
    for zone in zones:
        local = moment.astimezone(ZoneInfo(zone))
        inside = False
        for weekday, starts, ends in week:
            today, wall = local.weekday(), local.time()
            if ends > starts:
                inside |= today == weekday and starts <= wall < ends
            else:
                inside |= (today == weekday and wall >= starts) or (today == (weekday + 1) % 7 and wall < ends)
        if not inside:
            return False
    return True


@given(week=_weeks, zones=_zones, moment=_moments, later=st.integers(0, 100))
@settings(max_examples=150, deadline=None)
def test_cached_hours_match_the_wall_clock(week, zones, moment, later):
    hours: Hours = hours_of("Any", week)
    ask = PermissionCache()
    first = ask(moment, zones, (hours,))
    assert first.open is _by_the_wall_clock(moment, zones, week)
    if first.until is None:
        return
    # while a result is valid, it must hold at any later moment, and what opens then must be open
    between = moment + (first.until - moment) * later / 101
    assert ask(between, zones, (hours,)).open is _by_the_wall_clock(between, zones, week)
    if not first.open:
        assert _by_the_wall_clock(first.until, zones, week)


@given(week=_weeks, zones=_zones, moment=_moments)
@settings(max_examples=60, deadline=None)
def test_nothing_opens_before_the_moment_that_it_was_put_off_to(week, zones, moment):
    found = calling_permission(moment, zones, (hours_of("Any", week),))
    end = found.until or moment + timedelta(days=14)
    step = timedelta(minutes=15)
    probe = moment
    while not found.open and probe < end:
        assert not _by_the_wall_clock(probe, zones, week)
        probe += step
