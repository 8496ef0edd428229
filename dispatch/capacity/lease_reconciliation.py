"""Define how capacity reads from PostgreSQL which lines are in use.

The table of calls belongs to a higher slice. Telephony therefore registers its reader (`register_open_call_reader`
in its AppConfig.ready).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class Lease:
    """The line of one open call. `holder` identifies it (purpose:subject:attempt); slots count from 1."""

    holder: str
    number_id: int
    line_slot: int
    pool_id: int
    pool_slot: int


class OpenCallReader(Protocol):
    """Reads telephony's calls."""

    def open_leases(self) -> list[Lease]:
        """Return the lines of all open calls."""

    def open_leases_of(self, pool_id: int, number_ids: Collection[int]) -> list[Lease]:
        """Return the lines of open calls in this pool or on one of these numbers."""

    def ended(self, holders: Collection[str]) -> set[str]:
        """Return the holders, among these, whose call has ended."""

    def requests_of_account(self, account_id: int, since: datetime, limit: int) -> list[datetime]:
        """Return the times of the account's last `limit` requests after `since`, newest first."""

    def requests_of_pool(self, pool_id: int, since: datetime, limit: int) -> list[datetime]:
        """Return the times of the pool's last `limit` requests after `since`, newest first."""

    def requests_since(self, since: datetime) -> list[tuple[int, int, datetime]]:
        """Return (account id, pool id, time) of every request from `since` on, oldest first."""


_reader: OpenCallReader | None = None


def register_open_call_reader(reader: OpenCallReader) -> None:
    """Register the reader. Called once, when the applications are ready."""
    global _reader
    _reader = reader


def open_call_reader() -> OpenCallReader:
    """Return the registered reader. Raises RuntimeError if there is none."""
    if _reader is None:
        raise RuntimeError("No reader of open calls is registered (telephony's AppConfig.ready does that).")
    return _reader
