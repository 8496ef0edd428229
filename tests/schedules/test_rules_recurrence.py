"""Recurrence: time zones, clock changes, the 31st, leap days, first Mondays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.schedules.rules import recurrence
from dispatch.schedules.rules.descriptions import describe, moment
from dispatch.schedules.rules.exclusions import Exclusions
from dispatch.schedules.rules.recurrence import (
    UNITS,
    InvalidTiming,
    Timing,
    check_timing,
    first_occurrence,
    is_moved,
    localize,
    next_after,
    preview,
)
from dispatch.schedules.rules.rrule_words import ordinal

NEW_YORK = "America/New_York"  # forward on March 8, 2026 at 02:00, back on November 1, 2026 at 02:00
BERLIN = "Europe/Berlin"  # forward on March 29, 2026 at 02:00, back on October 25, 2026 at 03:00


def at(text: str, zone: str = "UTC", fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def cron(expression: str, zone: str = NEW_YORK, **more: object) -> Timing:
    return Timing(zone=zone, cron=expression, **more)  # type: ignore[arg-type]


def every(count: int, unit: str, start: datetime, zone: str = NEW_YORK, **more: object) -> Timing:
    return Timing(zone=zone, every=count, unit=unit, anchor=start, starts_at=start, **more)  # type: ignore[arg-type]


def local(found: list[datetime], zone: str) -> list[str]:
    return [f"{one.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}" for one in found]


# --- The clocks go forward ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timing",
    [cron("30 2 * * *"), every(1, "day", at("2026-03-01 02:30", NEW_YORK))],
    ids=["cron", "interval"],
)
def test_a_time_that_does_not_exist_runs_at_the_first_moment_after_the_gap(timing: Timing) -> None:
    found = preview(timing, at("2026-03-07 12:00", NEW_YORK), 3)
    # not 03:30: the first moment after
    assert local(found, NEW_YORK) == ["2026-03-08 03:00 EDT", "2026-03-09 02:30 EDT", "2026-03-10 02:30 EDT"]
    assert [is_moved(one, timing) for one in found] == [True, False, False]


def test_two_times_in_one_gap_run_once() -> None:
    found = preview(cron("15,45 2 * * *"), at("2026-03-07 12:00", NEW_YORK), 3)
    assert local(found, NEW_YORK) == ["2026-03-08 03:00 EDT", "2026-03-09 02:15 EDT", "2026-03-09 02:45 EDT"]


def test_a_time_right_after_the_gap_is_its_own() -> None:
    timing = cron("0 3 * * *")
    found = preview(timing, at("2026-03-07 12:00", NEW_YORK), 1)
    assert local(found, NEW_YORK) == ["2026-03-08 03:00 EDT"]
    assert not is_moved(found[0], timing)


def test_hourly_intervals_ignore_clock_changes() -> None:
    timing = every(6, "hour", at("2026-03-08 00:00", NEW_YORK))
    found = preview(timing, at("2026-03-08 00:00", NEW_YORK), 3)
    assert [b - a for a, b in pairwise(found)] == [timedelta(hours=6)] * 2
    assert local(found, NEW_YORK)[0] == "2026-03-08 07:00 EDT"


def test_wildcard_skips_the_missing_hour() -> None:
    found = preview(cron("30 * * * *"), at("2026-03-08 00:45", NEW_YORK), 3)
    assert local(found, NEW_YORK) == ["2026-03-08 01:30 EST", "2026-03-08 03:30 EDT", "2026-03-08 04:30 EDT"]


# --- The clocks go back
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timing",
    [cron("30 1 * * *"), every(1, "day", at("2026-10-01 01:30", NEW_YORK))],
    ids=["cron", "interval"],
)
def test_a_time_that_exists_twice_runs_once_the_first_time(timing: Timing) -> None:
    found = preview(timing, at("2026-10-31 12:00", NEW_YORK), 2)
    assert local(found, NEW_YORK) == ["2026-11-01 01:30 EDT", "2026-11-02 01:30 EST"]


def test_asked_in_the_second_of_the_two_hours_it_is_the_next_day() -> None:
    for minute in (10, 30, 50):  # before, at and after the minute, by the clock on the wall
        asked = at(f"2026-11-01 01:{minute}", NEW_YORK, fold=1)
        assert local(preview(cron("30 1 * * *"), asked, 1), NEW_YORK) == ["2026-11-02 01:30 EST"]


def test_a_wildcard_runs_in_both_hours() -> None:
    found = preview(cron("30 * * * *"), at("2026-11-01 00:45", NEW_YORK), 3)
    assert local(found, NEW_YORK) == ["2026-11-01 01:30 EDT", "2026-11-01 01:30 EST", "2026-11-01 02:30 EST"]


def test_another_zone_changes_on_another_day() -> None:
    found = preview(cron("30 2 * * *", BERLIN), at("2026-03-28 12:00", BERLIN), 1)
    assert local(found, BERLIN) == ["2026-03-29 03:00 CEST"]
    found = preview(cron("30 2 * * *", BERLIN), at("2026-10-24 12:00", BERLIN), 2)
    assert local(found, BERLIN) == ["2026-10-25 02:30 CEST", "2026-10-26 02:30 CET"]


# --- The calendar
# --------------------------------------------------------------------------------------------------


def test_cron_on_the_31st_runs_only_where_there_is_one() -> None:
    found = preview(cron("0 9 31 * *", "UTC"), at("2027-01-01"), 7)
    assert [f"{one:%m-%d}" for one in found] == ["01-31", "03-31", "05-31", "07-31", "08-31", "10-31", "12-31"]


def test_monthly_on_31st_uses_last_day_of_shorter_months() -> None:
    found = preview(every(1, "month", at("2026-12-31 09:00", "UTC"), "UTC"), at("2026-12-31 10:00"), 6)
    assert [f"{one:%m-%d}" for one in found] == ["01-31", "02-28", "03-31", "04-30", "05-31", "06-30"]


def test_cron_on_the_leap_day_runs_in_leap_years() -> None:
    found = preview(cron("0 9 29 2 *", "UTC"), at("2026-01-01"), 2)
    assert [f"{one:%Y-%m-%d}" for one in found] == ["2028-02-29", "2032-02-29"]


def test_every_year_from_a_leap_day() -> None:
    found = preview(every(1, "year", at("2028-02-29 09:00", "UTC"), "UTC"), at("2028-03-01"), 4)
    assert [f"{one:%Y-%m-%d}" for one in found] == ["2029-02-28", "2030-02-28", "2031-02-28", "2032-02-29"]


def test_century_without_a_leap_year() -> None:
    assert next_after(cron("0 9 29 2 *", "UTC"), at("2096-03-01")) == at("2104-02-29 09:00")


def test_every_first_monday() -> None:
    found = preview(cron("0 9 * * MON#1", "UTC"), at("2026-11-22"), 3)
    assert [f"{one:%Y-%m-%d %a}" for one in found] == ["2026-12-07 Mon", "2027-01-04 Mon", "2027-02-01 Mon"]


def test_the_last_day_of_the_month() -> None:
    found = preview(cron("0 9 L * *", "UTC"), at("2027-01-30"), 3)
    assert [f"{one:%m-%d}" for one in found] == ["01-31", "02-28", "03-31"]


def test_every_other_week_keeps_its_weekday() -> None:
    found = preview(every(2, "week", at("2026-10-20 09:00", NEW_YORK)), at("2026-10-20 10:00", NEW_YORK), 2)
    assert local(found, NEW_YORK) == ["2026-11-03 09:00 EST", "2026-11-17 09:00 EST"]


# --- Beginning and end
# ---------------------------------------------------------------------------------------------


def test_nothing_before_the_start_and_the_start_itself_counts() -> None:
    timing = every(3, "day", at("2026-12-10 09:00"), "UTC")
    assert first_occurrence(timing, at("2026-12-01")) == at("2026-12-10 09:00")
    assert preview(timing, at("2026-12-01"), 2)[1] == at("2026-12-13 09:00")
    assert first_occurrence(cron("0 9 * * *", "UTC", starts_at=at("2026-12-10 09:00")), at("2026-12-01")) == at(
        "2026-12-10 09:00"
    )


def test_nothing_after_the_end_and_the_end_itself_counts() -> None:
    timing = cron("0 9 * * *", "UTC", ends_at=at("2026-12-03 09:00"))
    assert preview(timing, at("2026-12-01 10:00")) == [at("2026-12-02 09:00"), at("2026-12-03 09:00")]


def test_a_number_of_times() -> None:
    timing = cron("0 9 * * *", "UTC", max_occurrences=3)
    assert len(preview(timing, at("2026-12-01"))) == 3
    assert next_after(timing, at("2026-12-01"), made=3) is None


@pytest.mark.parametrize(
    ("timing", "field"),
    [
        (cron("0 9 * *"), "cron"),
        (cron("0 9 * * * *"), "cron"),
        (cron("61 9 * * *"), "cron"),
        (cron("0 9 30 2 *"), "cron"),
        (cron("0 9 * * MON#6"), "cron"),
        (cron("0 9 * * *", ends_at=at("2020-01-01")), "cron"),
        (cron("0 9 * * *", starts_at=at("2027-01-02"), ends_at=at("2027-01-01")), "ends_at"),
        (Timing(zone="UTC", every=5, unit="second", anchor=at("2026-01-01")), "every"),
        (Timing(zone="UTC", every=1, unit="fortnight", anchor=at("2026-01-01")), "unit"),
        (every(1, "day", at("2026-01-01"), ends_at=at("2026-01-05")), "ends_at"),
    ],
)
def test_impossible_or_invalid_cron_is_rejected(timing: Timing, field: str) -> None:
    with pytest.raises(InvalidTiming) as refused:
        check_timing(timing, at("2026-12-01"), 10)
    assert refused.value.field == field


# --- Properties
# ----------------------------------------------------------------------------------------------------

moments = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
zones = st.sampled_from([NEW_YORK, BERLIN, "America/Phoenix", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"])
timings = st.one_of(
    st.builds(every, st.integers(1, 40), st.sampled_from(UNITS[1:]), moments, zones),
    st.builds(
        lambda minute, hour, zone: cron(f"{minute} {hour} * * *", zone),
        st.integers(0, 59), st.integers(0, 23), zones,
    ),
)  # fmt: skip


@given(timings, moments)
def test_occurrences_increase_and_do_not_depend_on_query_time(timing: Timing, now: datetime) -> None:
    found = preview(timing, now, 5)
    assert all(a < b for a, b in pairwise(found))
    assert all(one > now for one in found)
    for before, after in pairwise(found):
        assert next_after(timing, before) == after
        assert next_after(timing, after - timedelta(microseconds=1)) == after


@given(st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)), zones)  # noqa: DTZ001
def test_a_wall_clock_time_becomes_one_moment_not_before_it(naive: datetime, zone: str) -> None:
    found = localize(naive, zone)
    assert found.replace(tzinfo=None) >= naive.replace(second=0, microsecond=0)
    assert found.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == found.replace(tzinfo=None)


# --- Descriptions
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing(zone=NEW_YORK, trigger_at=at("2026-12-07 14:00")),
         "Once, Mon, Dec 7, 2026, 09:00 EST (America/New_York)"),
        (cron("0 9 * * MON#1"), "At 09:00 on the first Monday of the month (America/New_York)"),
        (cron("0 9 31 * *", "UTC"), "At 09:00 on the 31st day of every month (UTC)"),
        (every(1, "day", at("2026-12-07 09:00", "UTC"), "UTC", max_occurrences=1),
         "Every day at 09:00 (UTC), 1 time"),
        (every(2, "week", at("2026-12-07 09:00", "UTC"), "UTC"), "Every 2 weeks on Monday at 09:00 (UTC)"),
        (every(90, "minute", at("2026-12-07 09:00", "UTC"), "UTC"), "Every 90 minutes (UTC)"),
        (
            every(1, "month", at("2026-12-31 09:00", "UTC"), "UTC"),
            "Every month on the 31st, or the last day of a shorter month, at 09:00 (UTC)",
        ),
        (every(1, "year", at("2028-02-29 09:00", "UTC"), "UTC"),
         "Every year on February 29, or the last day of a shorter month, at 09:00 (UTC)"),
        (cron("0 9 * * *", "UTC", ends_at=at("2027-01-01 00:00")),
         "At 09:00 every day (UTC), until Fri, Jan 1, 2027, 00:00 UTC"),
    ],
)  # fmt: skip
def test_a_timing_in_words(timing: Timing, said: str) -> None:
    assert describe(timing) == said


def test_small_words() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 31)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "31st",
    ]  # fmt: skip
    assert moment(at("2026-12-07 14:00:05"), NEW_YORK) == "Mon, Dec 7, 2026, 09:00:05 EST"


# --- Exclusions --------------------------------------------------------------------------------------------------


EVERY_MORNING = {
    "cron": {"cron": "0 9 * * *"},
    "rrule": {"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=0", "anchor": at("2026-12-01 09:00")},
    "interval": {"every": 1, "unit": "day", "anchor": at("2026-12-01 09:00")},
}


def mornings_from(first: datetime, count: int) -> Exclusions:
    starts = tuple(first + timedelta(days=day) for day in range(count))
    return Exclusions(starts, tuple(start + timedelta(minutes=2) for start in starts), ("Mornings",))


@pytest.mark.parametrize("fields", EVERY_MORNING.values(), ids=EVERY_MORNING)
def test_an_expression_is_parsed_once_for_all_excluded_times(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = Mock(wraps=recurrence._times_after)
    monkeypatch.setattr(recurrence, "_times_after", parsed)
    excluded = mornings_from(at("2026-12-02 08:59"), 1000)
    timing = Timing("UTC", exclusions=excluded, **fields)
    assert next_after(timing, at("2026-12-01 12:00")) == at("2029-08-28 09:00")
    assert parsed.call_count == 2


def test_few_times_within_a_long_exclusion_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = Mock(side_effect=Exclusions.end_at)
    monkeypatch.setattr(Exclusions, "end_at", lambda self, moment: looked_at(self, moment))
    years = Exclusions((at("2026-12-01 00:00"),), (at("2029-12-01 00:00"),), ("Years",))
    assert next_after(Timing("UTC", cron="* * * * *", exclusions=years), at("2026-12-01 12:00")) == years.ends[0]
    assert looked_at.call_count < 50


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    "fields",
    [
        {"cron": "*/20 1-3 * * *"},
        {"cron": "30 2 * * *"},
        {"rrule": "FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=0,30", "anchor": at("2026-10-01 02:30")},
        {"every": 1, "unit": "day", "anchor": at("2026-10-01 06:30")},
        {"every": 7, "unit": "minute", "anchor": at("2026-10-01 06:30")},
    ],
)
def test_times_after_an_exclusion_do_not_depend_on_where_the_computation_began(
    fields: dict[str, Any], zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tuple(at("2026-10-30 00:00") + timedelta(hours=5 * step) for step in range(20))
    ends = tuple(start + timedelta(minutes=step * 17) for step, start in enumerate(starts, 1))
    timing = Timing(zone, exclusions=Exclusions(starts, ends, ("Hours",)), **fields)
    found = preview(timing, starts[0], 60)
    for most in (1, 10_000):
        monkeypatch.setattr(recurrence, "MAX_SKIPPED", most)
        assert preview(timing, starts[0], 60) == found
        assert list(islice(recurrence.matches_after(timing, starts[0]), 60)) == found
    assert all(timing.exclusions.end_at(one) is None for one in found)
