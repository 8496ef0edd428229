"""Texts that explain why leads wait."""

from __future__ import annotations

import pytest

from dispatch.leads.rules.descriptions import describe_waiting
from dispatch.leads.rules.states import Reason


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason.CAMPAIGN_PAUSED, "Its campaign is paused"),
        (Reason.HOLIDAY, "Holiday at the person's location"),
        (Reason.ATTEMPTS_24H, "Reached the maximum number of calls in 24 hours"),
        (Reason.PHONE_BUSY, "Another call to this phone is in progress"),
        (Reason.PRECHECK_LATER, "The pre-check asked Dispatch to wait"),
        (Reason.RETRY, "Called without success"),
        (Reason.OUTAGE, "Delayed after an outage"),
    ],
)
def test_a_reason_without_its_time_is_a_whole_phrase(reason: Reason, text: str) -> None:
    assert describe_waiting(reason) == text
