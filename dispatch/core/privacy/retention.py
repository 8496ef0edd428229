"""Register kinds of rows with a retention period.

One elected loop (`accounts.loops`) deletes small batches. Example:

    retention.register("calls", 400, services.delete_expired_calls, label="Ended calls")

`delete_expired_calls(organization_id, before, limit)` deletes up to `limit` rows of that organization that ended
before `before`, and returns how many; a full batch means that there may be more. It runs in a separate
transaction, must be quick (with an index that begins at the oldest row), and never deletes open rows or events
that a reader has not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

Delete = Callable[[int, datetime, int], int]
DeleteShared = Callable[[datetime, int], int]
FOREVER = 0
# A longer period keeps rows forever. The limit also keeps the time before which rows expire a valid date.
MAX_DAYS = 36_500


@dataclass(frozen=True)
class RetentionKind:
    """One kind of row with a retention period. `shortest_days` is the minimum that other code depends on."""

    name: str
    label: str
    default_days: int
    shortest_days: int
    delete_batch: Delete


kept: dict[str, RetentionKind] = {}


def register(
    name: str, default_days: int, delete_batch: Delete, *, label: str = "", shortest_days: int = 1
) -> None:
    """Register a kind of row. Called from AppConfig.ready().

    `default_days` applies unless RETENTION_DAYS or an organization's row overrides it; 0 keeps rows forever.
    """
    kept[name] = RetentionKind(
        name, label or name.replace("_", " ").capitalize(), default_days, shortest_days, delete_batch
    )


@dataclass(frozen=True)
class SharedKind:
    """One kind of row that belongs to the installation, not to an organization. Only RETENTION_DAYS applies."""

    name: str
    default_days: int
    delete_batch: DeleteShared


shared: dict[str, SharedKind] = {}


def register_shared(name: str, default_days: int, delete_batch: DeleteShared) -> None:
    """Register a kind of row of the installation. `delete_batch(before, limit)` returns how many it deleted."""
    shared[name] = SharedKind(name, default_days, delete_batch)


def shared_days(name: str) -> int:
    """Return the retention period of a shared kind, in days; FOREVER keeps the rows."""
    return _limit(int(settings.RETENTION_DAYS.get(name, shared[name].default_days)))


def default_days(name: str) -> int:
    """Return the installation's period, for organizations without a rule.

    Raises KeyError for an unregistered name.
    """
    return _limit(int(settings.RETENTION_DAYS.get(name, kept[name].default_days)))


def effective_days(name: str, chosen: int | None = None) -> int:
    """Return the retention period in days: as `chosen` by an organization, or the installation's.

    It is never shorter than the registered minimum. FOREVER keeps the rows.
    """
    days = default_days(name) if chosen is None else chosen
    return FOREVER if days == FOREVER else _limit(max(days, kept[name].shortest_days))


def _limit(days: int) -> int:
    return FOREVER if days > MAX_DAYS else days
