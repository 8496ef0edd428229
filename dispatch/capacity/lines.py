"""Lines: which number and slot a call may use, given back when it ends, and set right against the open calls.

Nothing here is trusted with the limit itself: the partial unique indexes on open calls refuse what is double."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from django.db import transaction

from dispatch.capacity import fast, rates, rules, scripts, sql
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.capacity.truth import Lease, truth
from dispatch.core import clock
from dispatch.core.redis import REDIS_ERRORS, client

log = structlog.get_logger(__name__)

# A lease without any call lives so long: its transaction may still be on the way to its commit.
ORPHAN_GRACE_S = 30.0
BATCH = 500

T = TypeVar("T")


@dataclass(frozen=True)
class Proposal:
    """A line that seems free: slot `line_slot` of a number (`phone`: E.164), and slot `pool_slot` of the pool."""

    number_id: int
    account_id: int
    phone: str
    line_slot: int
    pool_slot: int


@dataclass
class NoLine(Exception):
    """There is no line now. `reason`: lines_busy, pool_full, pool_paused or no_number; ask again in
    `retry_in_s`."""

    reason: str
    retry_in_s: float

    @classmethod
    def because(cls, reason: str) -> NoLine:
        return cls(reason, rules.RETRY_IN_S[reason])

    def __str__(self) -> str:
        return f"no line: {self.reason}"


def propose(pool: DispatchPool, purpose: str, holder: str, *, only: int | None = None) -> Proposal | NoLine:
    """A line of the pool's numbers, or of the one with the id `only`, for `holder`, who may be any text and gets
    the same line when it asks again.

    Limits and pauses are read as they are now. Redis decides, or Postgres when Redis cannot be believed; call
    it in the transaction that writes the open call."""
    with transaction.atomic(savepoint=False):
        usable = {number.limits.id: number for number in sql.usable_numbers(pool.pk)}
        if only is not None and usable:
            usable = {only: usable[only]} if only in usable else {}
            if not usable:
                return NoLine.because("no_number")
        if not usable:
            open_pool = DispatchPool.objects.filter(pk=pool.pk, is_paused=False).exists()
            return NoLine.because("no_number" if open_pool else "pool_paused")
        numbers = [number.limits for number in usable.values()]
        pool.concurrency = next(iter(usable.values())).concurrency
        found = _from_redis(pool, purpose, holder, numbers) or sql.propose(pool, purpose, holder, numbers)
        if isinstance(found, str):
            return NoLine.because(found)
        number_id, line_slot, pool_slot = found
        chosen = usable[number_id]
        return Proposal(number_id, chosen.account_id, chosen.phone, line_slot, pool_slot)


def _from_redis(
    pool: DispatchPool, purpose: str, holder: str, numbers: list[rules.NumberLimits]
) -> tuple[int, int, int] | str | None:
    args: list[Any] = [fast.offset_ms(), holder, pool.pk, pool.concurrency]
    for number in numbers:
        ranges = rules.slot_ranges(number, purpose)
        args += [number.id, number.lines, len(ranges), *(edge for both in ranges for edge in both)]
    answer = fast.ask(scripts.PROPOSE, *args)
    if answer is None:
        return None
    return answer.decode() if isinstance(answer, bytes) else (answer[0], answer[1], answer[2])


_freed: list[Callable[[], None]] = []


def when_freed(heard: Callable[[], None]) -> None:
    """Has `heard` called whenever lines were given back in this process: a hint for who waits for one. It must be
    quick and raise nothing."""
    if heard not in _freed:
        _freed.append(heard)


def release(*holders: str) -> None:
    """Gives the holders' lines back, after commit; a second time does nothing. An outage of Redis is swallowed:
    the reconciler frees them."""
    if holders:
        transaction.on_commit(partial(_release, *holders), robust=True)


def _release(*holders: str) -> None:
    fast.ask(scripts.RELEASE, *holders)
    for heard in _freed:
        heard()


def give_back(holder: str) -> None:
    """Gives back a line for which no call was written, at once."""
    fast.ask(scripts.RELEASE, holder)


def repair(pool_id: int) -> None:
    """Tells Redis about the pool's open calls, after Postgres refused what Redis had proposed."""
    numbers = list(OutboundNumber.objects.filter(pool_id=pool_id).values_list("pk", flat=True))
    try:
        adopted = _adopt(truth().open_leases_of(pool_id, numbers))
    except REDIS_ERRORS:
        return
    log.info("lines repaired", pool=pool_id, adopted=adopted)


def reconcile() -> tuple[int, int]:
    """Sets Redis right by the open calls: (leases that it did not know, leases without an open call that were
    ended).

    Raises one of REDIS_ERRORS when Redis is gone."""
    stored: Any = client().hgetall(f"{fast.base_key()}:leases")
    believed = {holder.decode(): lease.decode() for holder, lease in stored.items()}
    now_ms = clock.now_ms()
    open_leases = (
        truth().open_leases()
    )  # after the leases were read: what is missing here had no call yet, or no more
    holders = {lease.holder for lease in open_leases}
    adopted = _adopt([lease for lease in open_leases if not _same(believed.get(lease.holder), lease)])
    without = {holder: lease for holder, lease in believed.items() if holder not in holders}
    over = truth().ended(without)
    stale = [
        item
        for holder, lease in without.items()
        if holder in over or int(lease.rpartition(":")[2]) <= now_ms - ORPHAN_GRACE_S * 1000
        for item in (holder, lease)
    ]
    ended = 0
    for some in _batched(stale, 2 * BATCH):
        answer = fast.run(scripts.FORGET, some)
        ended += answer if isinstance(answer, int) else 0
    if adopted or ended:
        log.info("lines reconciled", adopted=adopted, ended=ended)
    return adopted, ended


def rebuild() -> None:
    """Writes all lines and rates anew from Postgres: what `core.generation` calls when Redis lost them."""
    names = list(client().scan_iter(match=f"{fast.base_key()}:*", count=1000))
    for some in _batched(names, BATCH):
        client().unlink(*some)
    _adopt(truth().open_leases())
    rates.restore()


def catch_up(away_since: datetime) -> None:
    """Redis is back after an outage during which Postgres decided: tells it what happened."""
    reconcile()
    rates.restore(since=away_since)


def _adopt(leases: Sequence[Lease]) -> int:
    changed = 0
    for some in _batched(leases, BATCH):
        args: list[Any] = [fast.offset_ms()]
        for lease in some:
            args += [lease.holder, lease.number_id, lease.line_slot, lease.pool_id, lease.pool_slot]
        changed += fast.run(scripts.ADOPT, args)
    return changed


def _same(believed: str | None, lease: Lease) -> bool:
    known = f"{lease.number_id}:{lease.line_slot}:{lease.pool_id}:{lease.pool_slot}:"
    return believed is not None and believed.startswith(known)


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
