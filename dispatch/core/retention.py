"""What is kept for a time and then forgotten: each slice registers what it ages, and one elected loop
(`accounts.loops`) asks it to delete small batches.

    retention.register("calls", 400, services.forget_calls, label="Calls that are over")

`forget_calls(organization_id, before, limit)` deletes up to `limit` rows of that organization that ended before
`before`, and returns how many; a full batch means that there may be more. It runs in a transaction of its own,
must be quick (an index from the oldest on), and never takes what is open or what a reader has yet to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

Delete = Callable[[int, datetime, int], int]
FOREVER = 0


@dataclass(frozen=True)
class Kept:
    """One kind of row that ages. `shortest_days`: what may not be fallen below, for something stands on it."""

    name: str
    label: str
    default_days: int
    shortest_days: int
    delete_batch: Delete


kept: dict[str, Kept] = {}


def register(
    name: str, default_days: int, delete_batch: Delete, *, label: str = "", shortest_days: int = 1
) -> None:
    """Called from AppConfig.ready(). `default_days` counts unless RETENTION_DAYS or an organization's row says
    otherwise; 0 keeps forever."""
    kept[name] = Kept(
        name, label or name.replace("_", " ").capitalize(), default_days, shortest_days, delete_batch
    )


def default_days(name: str) -> int:
    """The installation's, for organizations that chose nothing. Raises KeyError for what nobody registered."""
    return int(settings.RETENTION_DAYS.get(name, kept[name].default_days))
