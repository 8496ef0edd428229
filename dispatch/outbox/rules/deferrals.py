"""Track how long a target has only deferred messages, and when to report it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Deferrals:
    """Deferrals of a target since its last delivery. `is_reported` lasts until the next, over several series."""

    since: datetime | None = None
    last_at: datetime | None = None
    is_reported: bool = False


def add_deferral(deferrals: Deferrals, at: datetime, *, max_gap: timedelta) -> Deferrals:
    """Return the deferrals including one more. A gap of more than `max_gap` begins a new series."""
    if deferrals.since is None or deferrals.last_at is None or at - deferrals.last_at > max_gap:
        return replace(deferrals, since=at, last_at=at)
    return replace(deferrals, last_at=max(at, deferrals.last_at))


def is_lasting(deferrals: Deferrals, after: timedelta) -> bool:
    """Return whether the target has only deferred for `after`, and that was not reported yet."""
    if deferrals.since is None or deferrals.last_at is None or deferrals.is_reported:
        return False
    return deferrals.last_at - deferrals.since >= after
