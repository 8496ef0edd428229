"""Process batches of rows so that a failure or a lock of one row does not affect the others.

Organizations take turns in a batch, so that thousands of due rows of one of them delay no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog
from django.db import transaction
from django.db.models import QuerySet, Window
from django.db.models.functions import RowNumber

from dispatch.core.db import prepared
from dispatch.core.db.errors import is_database_away, is_lock_timeout
from dispatch.core.db.lock_waits import RecentlyBlocked

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Candidates for each row of a batch. If they are locked, the rest of the batch is taken in plain order.
CANDIDATES = 2


def unlocked_ids(rows: QuerySet[Any], limit: int) -> list[int]:
    """Return the primary keys of up to `limit` rows that no other session has locked now; see `unlocked_rows`."""
    return [pk for (pk,) in unlocked_rows(rows, limit, "pk")]


def unlocked_rows(rows: QuerySet[Any], limit: int, *columns: str) -> list[tuple[Any, ...]]:
    """Return these columns of up to `limit` rows that no other session has locked now.

    The first row of each organization comes first, in the order of `rows`, then the second of each, and so on. A
    later pass finds the locked rows, so a row that stays locked delays no other row.
    """
    with prepared.index_plans():  # most passes find none: no transaction, and no read of the whole table
        if not rows.exists():
            return []
    with transaction.atomic():
        prepared.defer_fsync()
        prepared.prefer_index_plans()
        return _lock_unlocked(rows, limit, *columns)


def _lock_unlocked(rows: QuerySet[Any], limit: int, *columns: str) -> list[tuple[Any, ...]]:
    in_turn = _ids_in_turn(rows, CANDIDATES * limit)
    place = {pk: n for n, pk in enumerate(in_turn)}
    free = rows.select_for_update(skip_locked=True, no_key=True)
    found = sorted(
        free.filter(pk__in=in_turn).order_by().values_list("pk", *columns), key=lambda row: place[row[0]]
    )
    if len(found) < limit and len(in_turn) == CANDIDATES * limit:  # most of them are locked
        others = free.exclude(pk__in=in_turn).values_list("pk", *columns)
        found += others[: limit - len(found)]
    return [row[1:] for row in found[:limit]]


def _ids_in_turn(rows: QuerySet[Any], limit: int) -> list[int]:
    """Return the primary keys of the first rows, such that organizations take turns."""
    names = {field.name for field in rows.model._meta.fields}
    order: Any = rows.query.order_by or ("pk",)
    if "organization" in names:
        turn = Window(RowNumber(), partition_by="organization_id", order_by=list(order))
        rows = rows.annotate(_turn=turn).order_by("_turn", *order)
    return list(rows.values_list("pk", flat=True)[:limit])


class Count(Protocol):
    """Count how many items succeeded and failed, as `core.runtime.loops.Tally` does."""

    def succeeded(self) -> None: ...

    def failed(self) -> None: ...


@dataclass(frozen=True)
class FailureRule(Generic[T]):
    """Say what happens to an item that failed, so that the next passes are not about it alone.

    `postpone` makes the next passes skip it for a while, by its row or by a RecentlyBlocked. An item whose
    `failures`, this one included, reach `max_failures` goes to `quarantine` instead. A locked row is no failure of
    its item: it is postponed and not counted.
    """

    postpone: Callable[[T], Any]
    failures: Callable[[T], int] | None = None
    max_failures: int = 0
    quarantine: Callable[[T, Exception], Any] | None = None

    def apply(self, item: T, error: Exception) -> None:
        """Postpone or quarantine the item."""
        is_counted = self.quarantine and self.failures and not is_lock_timeout(error)
        if is_counted and self.failures(item) >= self.max_failures:  # type: ignore[misc]
            self.quarantine(item, error)  # type: ignore[misc]
        else:
            self.postpone(item)


def run_each(
    step: Callable[[T], int],
    items: Iterable[T],
    *,
    event: str,
    rule: FailureRule[T] | None = None,
    count: Count | None = None,
) -> int:
    """Return the sum of `step(item)`.

    An exception from one item is logged as `event`, follows the `rule`, and does not stop the others. Raises if
    the database is unavailable. Call it outside a transaction.
    """
    done = 0
    for item in items:
        try:
            done += step(item)
        except Exception as error:
            record_failure(item, error, event=event, rule=rule, count=count)
        else:
            if count:
                count.succeeded()
    return done


def take_within(items: Iterable[T], seconds: float) -> Iterator[T]:
    """Take items until this time has passed, at least one: a pass over a server that hangs ends in time."""
    deadline = time.monotonic() + seconds
    for item in items:
        yield item
        if time.monotonic() >= deadline:
            return


def record_failure(
    item: T, error: Exception, *, event: str, rule: FailureRule[T] | None = None, count: Count | None = None
) -> None:
    """Do what `run_each` does with an item that failed, for batches whose items run in threads.

    Call it where the error is handled. Raises if the database is unavailable.
    """
    name = getattr(item, "pk", item)
    if is_lock_timeout(error):
        log.warning(event, item=name, reason="locked by another session")
    else:
        if count:
            count.failed()
        if is_database_away(error):
            raise error
        log.exception(event, item=name)
    if rule is None:
        return
    try:
        rule.apply(item, error)
    except Exception as another:
        if is_database_away(another):
            raise
        log.exception("failed_item_not_postponed", item=name, during=event)


def run_unlocked(
    step: Callable[[int], int], rows: QuerySet[Any], limit: int, *, event: str, skipped: RecentlyBlocked
) -> int:
    """Return the sum of `step(pk)` over the first `limit` rows that no session has locked.

    A row that fails is skipped for a while by this process, so that many failing rows at the front of a queue do
    not delay those behind them.
    """
    due = unlocked_ids(rows.exclude(pk__in=skipped.keys()), limit)
    return run_each(step, due, event=event, rule=FailureRule[int](skipped.add))
