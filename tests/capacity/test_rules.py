"""Each purpose may take its slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.capacity.models import OutboundNumber
from dispatch.capacity.rules import NumberLimits, account_id_problem, free_lines, free_pool_slots, slot_ranges

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
def test_reserved_slots_are_tried_first_by_their_purpose(purpose: str, ranges: list) -> None:
    assert slot_ranges(NUMBER, purpose) == ranges


def test_fully_reserved_number_grants_leads_no_line() -> None:
    assert slot_ranges(NumberLimits(1, 2, 1, 1), "lead") == []
    assert slot_ranges(NumberLimits(1, 2, 2, 0), "offer") == []


def test_the_number_with_most_free_lines_is_chosen() -> None:
    numbers = [NumberLimits(1, 4), NumberLimits(2, 3)]
    assert next(free_lines(numbers, "lead", {1: {1, 2}})) == (2, 1)
    assert next(free_lines(numbers, "lead", {2: {1}})) == (1, 1)


def test_number_with_limit_below_use_grants_no_line() -> None:
    assert list(free_lines([NumberLimits(1, 2)], "alert", {1: {7, 8}})) == []
    assert list(free_lines([NumberLimits(1, 3)], "alert", {1: {7, 8}})) == [(1, 1), (1, 2), (1, 3)]


def test_new_number_carries_the_calls_of_several_jobs() -> None:
    assert OutboundNumber().max_channels == 10


def test_full_pool_grants_no_line() -> None:
    assert list(free_pool_slots(2, {4, 5})) == []
    assert list(free_pool_slots(3, {1, 5})) == [2, 3]


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 30))
def test_alerts_reach_every_slot_and_ranges_do_not_overlap(lines: int, alerts: int, offers: int) -> None:
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


@pytest.mark.parametrize(
    ("account_id", "why"),
    [
        ("SK" + "a" * 32, "SID of an API key"),
        ("sk" + "a" * 32, "SID of an API key"),
        ("ACshort", "32 hexadecimal digits"),
        ("ac" + "a" * 32, "32 hexadecimal digits"),
        ("AC" + "g" * 32, "32 hexadecimal digits"),
        ("+16025550100", "32 hexadecimal digits"),
        ("AC" + "a" * 33, "32 hexadecimal digits"),
    ],
)
def test_text_that_is_no_account_id_of_twilio_is_refused_with_the_reason(account_id: str, why: str) -> None:
    assert why in str(account_id_problem("twilio", account_id))


def test_ids_of_twilio_accounts_are_accepted_and_of_others_not_judged() -> None:
    assert account_id_problem("twilio", "AC" + "0aF9" * 8) is None
    assert account_id_problem("noop", "anything") is None
