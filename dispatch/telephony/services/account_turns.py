"""Take turns among accounts in a pass over calls or texts, so that a failing account delays the others little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from dispatch.telephony.models import Call, Text

# After this number of failures of an account, the pass sends no further requests for it.
MAX_FAILURES = 2

Row = TypeVar("Row", Call, Text)


class FailedAccounts:
    """The failures of one pass, by account."""

    def __init__(self) -> None:
        self._failures: Counter[int] = Counter()

    def add(self, account_id: int) -> None:
        self._failures[account_id] += 1

    def __contains__(self, account_id: int) -> bool:
        return self._failures[account_id] >= MAX_FAILURES


def take_turns(rows: Iterable[Row], limit: int) -> list[Row]:
    """Return at most `limit` of the rows: the first of each account, then the second of each, and so on.

    An account with many rows therefore does not delay the others.
    """
    seen: Counter[int] = Counter()
    ranked = []
    for row in rows:
        ranked.append((seen[row.account_id], row))
        seen[row.account_id] += 1
    return [row for _, row in sorted(ranked, key=lambda pair: pair[0])[:limit]]
