"""Out of flight without a call: back to PENDING (or EXPIRED), spending nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from dispatch.core import clock
from dispatch.outbox import sql
from dispatch.outbox.services.claims import Claim, advance, lock_groups, settle


@dataclass(frozen=True)
class Return:
    """One QUEUED message of one epoch. `due_at` None: at once, when its turn comes."""

    id: int
    epoch: int
    group_id: int
    mode: str
    status: str = "PENDING"
    due_at: datetime | None = None
    waiting_for: str = ""
    verb: str = "deferred"


def put_back(returns: Sequence[Return]) -> list[Claim]:
    """Puts back those that are still QUEUED in that epoch; what took the place of the expired is to be
    published."""
    if not returns:
        return []
    now = clock.now()
    claims: list[Claim] = []
    with transaction.atomic():
        ordered = {item.group_id for item in returns if item.mode != "IMMEDIATE"}
        lock_groups(ordered)
        end([_ending(item, now) for item in returns], ["QUEUED"], now)
        if any(item.status == "EXPIRED" for item in returns):
            claims, _ = advance(now, own=ordered, pools=[])
        else:
            settle(ordered, now)
    return claims


@dataclass(frozen=True)
class Ending:
    """One row for `sql.END`: see there."""

    id: int
    epoch: int
    status: str
    due_at: datetime
    spent: int = 0
    lapsed: int = 0
    error: str = ""
    waiting_for: str = ""
    verb: str = ""


def ask_end(endings: Sequence[Ending], from_statuses: list[str], now: datetime) -> Callable[[], dict[int, str]]:
    """As `end`; its answer is waited for when it is called for."""
    names = ("ids", "epochs", "statuses", "dues", "spents", "lapses", "errors", "waits", "verbs")
    values = [
        (e.id, e.epoch, e.status, e.due_at, e.spent, e.lapsed, e.error[:300], e.waiting_for[:40], e.verb)
        for e in endings
    ]
    given: dict[str, Any] = dict(zip(names, sql.columns(values, len(names)), strict=True))
    answer = sql.ask(sql.END, {**given, "from": from_statuses, "now": now})
    return lambda: dict(answer())


def end(endings: Sequence[Ending], from_statuses: list[str], now: datetime) -> dict[int, str]:
    """Takes messages out of flight by compare-and-set; message id → its status now, for those that were.
    The groups of ordered ones must be locked, and settled afterwards."""
    return ask_end(endings, from_statuses, now)()


def _ending(item: Return, now: datetime) -> Ending:
    verb = "expired" if item.status == "EXPIRED" else item.verb
    return Ending(item.id, item.epoch, item.status, item.due_at or now, waiting_for=item.waiting_for, verb=verb)
