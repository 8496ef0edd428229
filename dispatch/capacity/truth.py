"""What is really in use, as Postgres knows it. The table of calls lies above this slice, so telephony registers
the one who reads it (`register_truth` in its AppConfig.ready)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class Lease:
    """One open call's line: `holder` identifies it (purpose:subject:attempt), slots count from 1."""

    holder: str
    number_id: int
    line_slot: int
    pool_id: int
    pool_slot: int


class Truth(Protocol):
    """Reads telephony's calls."""

    def open_leases(self) -> list[Lease]:
        """The lines of all open calls."""

    def open_leases_of(self, pool_id: int, number_ids: Collection[int]) -> list[Lease]:
        """Those in this pool or on one of these numbers."""

    def ended(self, holders: Collection[str]) -> set[str]:
        """Those of these holders whose call has ended."""

    def requests_of_account(self, account_id: int, since: datetime, limit: int) -> list[datetime]:
        """When the account's last `limit` requests after `since` were made, newest first."""

    def requests_of_pool(self, pool_id: int, since: datetime, limit: int) -> list[datetime]:
        """When the pool's last `limit` requests after `since` were made, newest first."""

    def requests_since(self, since: datetime) -> list[tuple[int, int, datetime]]:
        """(account id, pool id, moment) of every request after `since`, oldest first."""


_truth: Truth | None = None


def register_truth(source: Truth) -> None:
    """Called once, when the applications are ready."""
    global _truth
    _truth = source


def truth() -> Truth:
    """Raises RuntimeError when nobody registered."""
    if _truth is None:
        raise RuntimeError("Nobody registered the source of open calls (telephony's AppConfig.ready does).")
    return _truth
