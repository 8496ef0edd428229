"""Which slots are whose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.capacity.rules import NumberLimits, free_lines, free_pool_slots, slot_ranges

NUMBER = NumberLimits(1, lines=10, for_alerts=2, for_offers=3)


@pytest.mark.parametrize(
    ("purpose", "ranges"),
    [
        ("lead", [(1, 5)]),
        ("offer", [(6, 8), (1, 5)]),
        ("alert", [(9, 10), (6, 8), (1, 5)]),
        ("test", [(1, 5)]),
    ],
)
def test_reserved_slots_are_tried_first_by_those_for_whom_they_are(purpose: str, ranges: list) -> None:
    assert slot_ranges(NUMBER, purpose) == ranges


def test_a_number_that_is_all_reserved_gives_leads_nothing() -> None:
    assert slot_ranges(NumberLimits(1, 2, 1, 1), "lead") == []
    assert slot_ranges(NumberLimits(1, 2, 2, 0), "offer") == []


def test_the_number_with_most_free_lines_is_chosen() -> None:
    numbers = [NumberLimits(1, 4), NumberLimits(2, 3)]
    assert next(free_lines(numbers, "lead", {1: {1, 2}})) == (2, 1)
    assert next(free_lines(numbers, "lead", {2: {1}})) == (1, 1)


def test_a_number_made_smaller_than_its_use_gives_nothing() -> None:
    assert list(free_lines([NumberLimits(1, 2)], "alert", {1: {7, 8}})) == []
    assert list(free_lines([NumberLimits(1, 3)], "alert", {1: {7, 8}})) == [(1, 1), (1, 2), (1, 3)]


def test_a_full_pool_gives_nothing() -> None:
    assert list(free_pool_slots(2, {4, 5})) == []
    assert list(free_pool_slots(3, {1, 5})) == [2, 3]


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 30))
def test_every_slot_is_in_reach_of_alerts_and_no_range_overlaps(lines: int, alerts: int, offers: int) -> None:
    alerts = min(alerts, lines)
    number = NumberLimits(1, lines, alerts, min(offers, lines - alerts))
    slots = [slot for low, high in slot_ranges(number, "alert") for slot in range(low, high + 1)]
    assert sorted(slots) == list(range(1, lines + 1))
    reach = {
        p: {s for low, high in slot_ranges(number, p) for s in range(low, high + 1)} for p in ("offer", "lead")
    }
    assert reach["lead"] <= reach["offer"] <= set(slots)
    assert len(slots) - len(reach["offer"]) == number.for_alerts
    assert len(reach["offer"]) - len(reach["lead"]) == number.for_offers
