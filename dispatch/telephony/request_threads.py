"""Run requests to the provider beside loops and workers, with a share for each account.

Loops, workers and web processes do not wait for a provider. A loop claims work only for accounts that have a free
slot. An account that hangs therefore holds only its share of slots and delays no other account. Calls, texts,
hang-ups, lookups and probes have separate slots. Calls are requested in an event loop, and threads only write
their outcomes; for the others, a slot is a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from dispatch.core import clock
from dispatch.core.db.isolation import FailureRule
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.runtime.fair_requests import FairRequests
from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.telephony.models import Call, Text

Row = TypeVar("Row", Call, Text)

CALLS = FairRequests("calls", requests=64, per_key=16, threads=8)
TEXTS = FairThreads("texts", threads=12, per_key=4)
HANG_UPS = FairThreads("hang_ups", threads=16, per_key=4)
LOOKUPS = FairThreads("lookups", threads=16, per_key=4)
PROBES = FairThreads("probes", threads=16, per_key=1)

# A pass that finds no free thread for its work waits this long for one (seconds).
WAIT_S = 0.5


class DueRow(NamedTuple):
    """A row that is due for a request. `is_out`: its account has an outage, so that one thread is enough."""

    id: int
    account_id: int
    is_out: bool = False


class FailingAccounts:
    """Accounts whose last lookup failed. They are left alone for a while, by this process."""

    PAUSE = timedelta(seconds=5)

    def __init__(self) -> None:
        self._until: dict[int, datetime] = {}

    def add(self, account_id: int) -> None:
        self._until[account_id] = clock.now() + self.PAUSE

    def ids(self) -> set[int]:
        now = clock.now()
        # A copy, because threads add accounts meanwhile.
        return {account_id for account_id, until in list(self._until.items()) if until > now}

    def __contains__(self, account_id: int) -> bool:
        return account_id in self.ids()

    def discard(self, account_id: int) -> None:
        self._until.pop(account_id, None)


failing_accounts = FailingAccounts()


def start_due(
    threads: FairThreads,
    due: Collection[DueRow],
    claim: Callable[[int], Row | None],
    work: Callable[[Row], object],
    *,
    event: str,
    skipped: RecentlyBlocked,
) -> bool:
    """Start `work` for each row whose account has a free thread. Return whether some rows have to wait for one.

    `claim` returns the row with its account, or None if it is no longer due. A row that cannot be claimed is
    logged as `event`, skipped for a while and does not stop the others.
    """
    rule, has_waiting = FailureRule[int](skipped.add), False
    for row in due:
        if threads is LOOKUPS and row.account_id in failing_accounts:
            continue  # since the rows were read
        slot = threads.reserve(row.account_id, (event, row.id), limit=1 if row.is_out else None)
        if slot is None:
            has_waiting = True
            continue
        slot.start_claimed(row.id, claim, work, event=event, rule=rule)
    return has_waiting


def busy_ids(threads: FairThreads, event: str) -> set[int]:
    """Return the ids of the rows that `start_due` has started with this `event` and that are in progress."""
    return {row_id for kind, row_id in threads.items() if kind == event}
