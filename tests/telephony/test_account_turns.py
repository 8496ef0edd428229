"""Accounts with many calls or texts do not stand before the others."""

from __future__ import annotations

from dispatch.telephony.models import Text
from dispatch.telephony.services.account_turns import FailedAccounts, take_turns


def test_each_account_has_its_turn() -> None:
    rows = [Text(pk=pk, account_id=account) for pk, account in enumerate([1, 1, 1, 1, 2, 2, 3])]
    assert [row.pk for row in take_turns(rows, 5)] == [0, 4, 6, 1, 5]
    assert [row.pk for row in take_turns(rows[:3], 5)] == [0, 1, 2]


def test_an_account_is_left_alone_after_its_second_failure() -> None:
    failed = FailedAccounts()
    failed.add(1)
    assert 1 not in failed
    failed.add(1)
    assert (1 in failed, 2 in failed) == (True, False)
