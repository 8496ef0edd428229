"""The decisions about calls, without any call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.telephony import rules
from dispatch.telephony.models import Call
from dispatch.telephony.rules import ListedCall

ASKED = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def listed(sid: str, seconds: float | None, status: str = "submitted") -> ListedCall:
    return ListedCall(sid, status, None if seconds is None else ASKED + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("calls", "known", "ours"),
    [
        ([], set(), None),
        ([listed("CA1", 0.4)], set(), "CA1"),
        ([listed("CA1", -2)], set(), "CA1"),  # clocks differ, and the provider counts whole seconds
        ([listed("CA1", -31)], set(), None),  # a stranger's call, or our own from long ago
        ([listed("CA1", 0.4)], {"CA1"}, None),
        ([listed("CA1", -20), listed("CA2", 1)], {"CA1"}, "CA2"),
        ([listed("CA2", 9), listed("CA1", 1)], set(), "CA1"),
        ([listed("CA1", None)], set(), "CA1"),
    ],
)
def test_which_listed_call_is_ours(calls: list[ListedCall], known: set[str], ours: str | None) -> None:
    found = rules.find_our_call(calls, ASKED, known)
    assert (found.sid if found else None) == ours


@pytest.mark.parametrize(
    ("now", "checked", "counts"),
    [(4, None, False), (14.9, None, False), (15, None, True), (60, 15, False), (74.9, 15, False), (75, 15, True)],
)
def test_when_an_empty_listing_counts(now: float, checked: float | None, counts: bool) -> None:
    send_by = ASKED + timedelta(seconds=5)
    checked_at = None if checked is None else ASKED + timedelta(seconds=checked)
    assert rules.listing_counts(ASKED + timedelta(seconds=now), send_by, checked_at, 10, 60) is counts


def test_every_status_has_its_rank() -> None:
    assert set(rules.RANK) == set(Call.Status.values)
    assert not any(rules.is_forward(end, status) for end in rules.ENDS for status in rules.RANK)


@given(st.lists(st.sampled_from(sorted(rules.RANK))))
def test_whatever_arrives_a_call_ends_once_and_never_goes_back(arriving: list[str]) -> None:
    way = ["created"]
    for status in arriving:
        if rules.is_forward(way[-1], status):
            way.append(status)
    ranks = [rules.RANK[status] for status in way]
    assert ranks == sorted(set(ranks))
    assert sum(status in rules.ENDS for status in way) <= 1


@given(st.text(max_size=20), st.lists(st.sampled_from(["US", "CA", "GB", "DE"])))
def test_no_text_breaks_the_check_of_a_number(text: str, countries: list[str]) -> None:
    reason = rules.why_not_callable(text, countries)
    assert reason is None or reason
