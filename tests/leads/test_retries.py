"""When a lead is called again, and how often in a day."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.leads.rules.retries import DAY, RetryPolicy, first_moment_below_limit, retry_at

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def test_each_attempt_waits_longer_up_to_the_longest():
    rule = RetryPolicy(delay_s=600, factor=2, longest_s=3600, attempts=9)
    waits = [(retry_at(NOON, attempt, rule, 0.5) - NOON).total_seconds() for attempt in (1, 2, 3, 4, 8)]
    assert waits == [600, 1200, 2400, 3600, 3600]


def test_jitter_spreads_to_either_side():
    rule = RetryPolicy(delay_s=1000, jitter=0.2)
    spread = [(retry_at(NOON, 1, rule, chance) - NOON).total_seconds() for chance in (0, 0.5, 1)]
    assert spread == [800, 1000, 1200]


@pytest.mark.parametrize("attempt", [3, 4])
def test_after_the_last_attempt_there_is_none(attempt):
    assert retry_at(NOON, attempt, RetryPolicy(delay_s=60, attempts=3), 0.5) is None


def test_an_outcome_without_a_rule_is_not_retried():
    assert retry_at(NOON, 1, None, 0.5) is None


def test_due_times_are_rounded_up_never_down():
    ended = NOON + timedelta(microseconds=1)
    assert retry_at(ended, 1, RetryPolicy(delay_s=0), 0.5) == NOON + timedelta(milliseconds=1)


def test_the_day_of_attempts_rolls_and_knows_no_midnight():
    began = [NOON - hours(23), NOON - hours(2), NOON - hours(1)]
    assert first_moment_below_limit(NOON, began, 4) == NOON
    assert first_moment_below_limit(NOON, began, 3) == NOON + hours(1)
    assert first_moment_below_limit(NOON, began, 1) == NOON + hours(23)
    assert first_moment_below_limit(NOON, [NOON - DAY], 1) == NOON


def test_limit_of_zero_never_has_headroom():
    assert first_moment_below_limit(NOON, [], 0) is None


@given(st.lists(st.integers(0, 4000), max_size=12), st.integers(1, 5))
def test_headroom_exists_at_the_named_moment_and_not_before(minutes, limit):
    began = [NOON - timedelta(minutes=count) for count in minutes]
    found = first_moment_below_limit(NOON, began, limit)

    def counted(moment: datetime) -> int:
        return sum(moment - DAY < other <= moment for other in began)

    assert counted(found) < limit
    if found > NOON:
        assert counted(found - timedelta(milliseconds=1)) >= limit
