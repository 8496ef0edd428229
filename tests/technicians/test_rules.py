"""Reasons in words and working hours, as pure functions."""

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.technicians import rules

FACTS = rules.Facts(
    distance_m=12_400,
    unit="km",
    needs_skill=True,
    radius_m=50_000,
    own_radius_m=10_000,
    open_jobs=1,
    max_open_jobs=1,
    missing=(),
    hours=None,
    local_now=datetime(2026, 11, 18, 9, 30, tzinfo=ZoneInfo("America/Phoenix")),
)


def words(code, **changes):
    return rules.reason_words(code, FACTS._replace(**changes))


def test_reasons_read_like_sentences_of_a_dispatcher():
    assert words("fit") == "12 km, qualified"
    assert words("fit", needs_skill=False, unit="mi") == "7.7 mi"
    assert words("own_radius") == "2.4 km outside own radius"
    assert words("lacks_skill", missing=("Gas", "Roof")) == "missing skill: Gas, Roof"
    assert words("at_limit") == "1 of 1 open job"
    assert words("on_another_offer") == "12 km, has another offer"


def test_a_reason_fits_its_column_whatever_the_names():
    assert len(words("lacks_skill", missing=tuple(f"A very long skill number {n}" for n in range(40)))) == 160


def test_a_reason_nobody_knows_is_an_error():
    with pytest.raises(ValueError, match="unknown reason"):
        words("hungry")


def test_remaining_reasons_are_summarized_most_frequent_first():
    assert rules.rest_words({"off_duty": 3, "off_shift": 120, "fit": 3}) == (
        "120 off shift, 3 eligible, farther away, 3 off duty"
    )
    assert rules.rest_words({}) == ""


def test_only_fit_and_busy_are_not_out():
    codes = [rules.FIT, rules.BUSY, rules.OFF_DUTY, rules.OFF_SHIFT, rules.LACKS_SKILL, rules.AT_LIMIT]
    assert [rules.verdict_of(code) for code in codes] == ["in", "deferred", "out", "out", "out", "out"]


def test_back_to_back_shifts_are_one_stretch():
    assert rules.week_spans([(0, time(8), time(12)), (0, time(12), time(17))]) == ((28_800, 61_200),)
    assert rules.week_spans([]) is None


def test_the_next_start_may_be_next_week():
    hours = rules.week_spans([(0, time(8), time(9))])
    friday = datetime(2026, 11, 20, 18, 0)  # noqa: DTZ001
    assert rules.next_start(hours, friday) == datetime(2026, 11, 23, 8, 0)  # noqa: DTZ001


times = st.builds(time, st.integers(0, 23), st.integers(0, 59))
shifts = st.lists(st.tuples(st.integers(0, 6), times, times), min_size=1, max_size=8)


@given(shifts, st.integers(0, rules.WEEK_S - 1))
def test_spans_hold_exactly_the_seconds_of_the_shifts(week, second):
    monday = datetime(2026, 11, 16)  # noqa: DTZ001
    moment = monday + timedelta(seconds=second)

    def covers(weekday, starts, ends):
        for week_before in (0, 7):
            begin = datetime.combine(monday.date() + timedelta(days=weekday - week_before), starts)
            end = datetime.combine(begin.date(), ends) + timedelta(days=1 if ends <= starts else 0)
            if begin <= moment < end:
                return True
        return False

    spans = rules.week_spans(week)
    assert any(low <= second < high for low, high in spans) == any(covers(*one) for one in week)


@given(shifts, st.integers(0, rules.WEEK_S - 1))
def test_the_next_start_is_at_work_and_nothing_before_it_is_when_off(week, second):
    spans = rules.week_spans(week)
    moment = datetime(2026, 11, 16) + timedelta(seconds=second)  # noqa: DTZ001
    start = rules.next_start(spans, moment)
    assert moment <= start <= moment + timedelta(days=7)
    assert any(low <= rules.week_second(start) < high for low, high in spans)
