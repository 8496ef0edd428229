"""Lease lines: propose a line for a call, release it at the end of the call, and reconcile leases with calls.

These leases do not enforce the limit: the partial unique indexes on open calls reject duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from django.db import transaction

from dispatch.capacity import account_outages, rate_limits, redis_scripts, rules, sql
from dispatch.capacity.lease_reconciliation import Lease, open_call_reader
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.redis.client import LEADS, REDIS_ERRORS, client

log = structlog.get_logger(__name__)

# Age at which a lease without a call expires. Until then, its transaction may still commit.
ORPHAN_GRACE_S = 30.0
BATCH = 500
# Calls of these purposes take free lines before leads, and are placed from a pool's fallback during an outage.
URGENT_PURPOSES = (rules.ALERT, rules.OFFER, rules.JOB_NEWS)
# One that finds no line in its pool tries again every second. Until it has one, or for this long after its last
# try, leads take no further line of the pool.
WAITING_MS = 5000
OUTAGE_REASONS = (account_outages.Outage.REFUSED, account_outages.Outage.NO_ANSWER)

T = TypeVar("T")


@dataclass(frozen=True)
class LineProposal:
    """A line that seems free: `line_slot` of a number (`phone`: E.164), and `pool_slot` of its `pool`.

    The pool is the one asked for, or its fallback.
    """

    number_id: int
    account_id: int
    phone: str
    line_slot: int
    pool_slot: int
    pool: DispatchPool


@dataclass
class NoLine(Exception):
    """No line is available now.

    `reason` is lines_busy, pool_full, pool_paused, no_number, spend_cap, or the account's outage (refused,
    no_answer), the last three with `detail` in words. Retry in `retry_in_s`.
    """

    reason: str
    retry_in_s: float
    detail: str = ""

    @classmethod
    def because(cls, reason: str, detail: str = "") -> NoLine:
        return cls(reason, rules.RETRY_IN_S[reason], detail)

    def __str__(self) -> str:
        return self.detail or f"no line: {self.reason}"


FindNumbers = Callable[[], list[sql.UsableNumber]]


def find_numbers(pool: DispatchPool, only: int | None = None) -> FindNumbers:
    """Return a function for the numbers that `propose_line` chooses from, to read them with other rows."""
    return sql.usable_numbers(pool.pk, also_resting=only is not None)


def propose_line(
    pool: DispatchPool,
    purpose: str,
    holder: str,
    *,
    only: int | None = None,
    waiter: str = "",
    numbers: FindNumbers | None = None,
) -> LineProposal | NoLine:
    """Propose a line of the pool's numbers for `holder`; with `only`, a line of the number with that id.

    `holder` may be any text; the same holder gets the same line again. Limits and pauses are current. Redis
    decides, or Postgres if Redis is unavailable. Call it in the transaction that writes the open call. `numbers`:
    from `find_numbers`, if this transaction has read them a moment ago.

    If no line is free, an urgent call gets the pool's next one before any lead. It waits under the name `waiter`,
    by default its holder: name one if each try has a different holder.

    During an outage of the pool's accounts, alert calls, job offers and calls about changed jobs get a line of the
    pool's fallback, if any.
    """
    with transaction.atomic(savepoint=False):
        numbers = numbers or find_numbers(pool, only)
        proposal = _propose(pool, purpose, holder, only, waiter or holder, numbers())
        if isinstance(proposal, LineProposal) or only is not None or purpose not in URGENT_PURPOSES:
            return proposal
        fallback = account_outages.fallback_of_pool(pool.pk) if proposal.reason in OUTAGE_REASONS else None
        if fallback is None:
            return proposal
        other = _propose(fallback, purpose, holder, None, waiter or holder, find_numbers(fallback)())
        has_numbers = isinstance(other, LineProposal) or other.reason in ("lines_busy", "pool_full")
        return other if has_numbers else proposal


def _propose(
    pool: DispatchPool,
    purpose: str,
    holder: str,
    only: int | None,
    waiter: str,
    numbers_of_pool: list[sql.UsableNumber],
) -> LineProposal | NoLine:
    usable = {number.limits.id: number for number in numbers_of_pool}
    if only is not None and usable:
        usable = {only: usable[only]} if only in usable else {}
        if not usable:
            return _outage(pool, only) or NoLine.because("no_number")
    if not usable:
        if outage := _outage(pool, only):
            return outage
        open_pool = DispatchPool.objects.filter(pk=pool.pk, is_paused=False).exists()
        return NoLine.because("no_number" if open_pool else "pool_paused")
    numbers = [number.limits for number in usable.values()]
    pool.concurrency = next(iter(usable.values())).concurrency
    proposal = _from_redis(pool, purpose, holder, numbers, waiter) or sql.propose_line(
        pool, purpose, holder, numbers
    )
    if isinstance(proposal, str):
        return NoLine.because(proposal)
    number_id, line_slot, pool_slot = proposal
    chosen = usable[number_id]
    return LineProposal(number_id, chosen.account_id, chosen.phone, line_slot, pool_slot, pool)


def _outage(pool: DispatchPool, only: int | None) -> NoLine | None:
    account = account_outages.outage_of_pool(pool.pk, only)
    return NoLine.because(account.outage, account_outages.describe(account)) if account else None


def _from_redis(
    pool: DispatchPool, purpose: str, holder: str, numbers: list[rules.NumberLimits], waiter: str
) -> tuple[int, int, int] | str | None:
    wait_ms = WAITING_MS if purpose in URGENT_PURPOSES else 0
    args: list[Any] = [redis_scripts.offset_ms(), holder, pool.pk, pool.concurrency, waiter, wait_ms]
    for number in numbers:
        ranges = rules.slot_ranges(number, purpose)
        args += [number.id, number.lines, len(ranges), *(edge for slot_range in ranges for edge in slot_range)]
    answer = redis_scripts.run_or_none(redis_scripts.PROPOSE, *args)
    if answer is None:
        return None
    return answer.decode() if isinstance(answer, bytes) else (answer[0], answer[1], answer[2])


_freed: list[Callable[[], None]] = []


def on_lines_released(callback: Callable[[], None]) -> None:
    """Register a callback, called whenever lines are released in this process, to notify waiters early.

    It must be quick and must not raise.
    """
    if callback not in _freed:
        _freed.append(callback)


def release_lines(*holders: str) -> None:
    """Release the holders' lines after the commit.

    Idempotent. During a Redis outage nothing is raised, and the reconciler releases the lines later.
    """
    if holders:
        transaction.on_commit(partial(_release_now, *holders), robust=True)


def _release_now(*holders: str) -> None:
    redis_scripts.run_or_none(redis_scripts.RELEASE, *holders)
    for callback in _freed:
        callback()


def return_lines(holder: str) -> None:
    """Release immediately the line of a holder for which no call was written."""
    redis_scripts.run_or_none(redis_scripts.RELEASE, holder)


def repair_pool(pool_id: int) -> None:
    """Write the pool's open calls to Redis, after Postgres rejected a proposal of Redis."""
    numbers = list(OutboundNumber.objects.filter(pool_id=pool_id).values_list("pk", flat=True))
    try:
        adopted = _adopt_leases(open_call_reader().open_leases_of(pool_id, numbers))
    except REDIS_ERRORS:
        return
    log.info("lines_repaired", pool=pool_id, adopted=adopted)


def reconcile_pool() -> tuple[int, int]:
    """Reconcile Redis with the open calls.

    Returns (leases that were missing in Redis, orphaned leases that were ended). Raises any of REDIS_ERRORS if
    Redis is unavailable.
    """
    stored: Any = client(LEADS).hgetall(f"{redis_scripts.base_key()}:leases")
    leases_in_redis = {holder.decode(): lease.decode() for holder, lease in stored.items()}
    now_ms = clock.now_ms()
    # Read after the leases: a lease that is missing here had no call yet, or its call has ended.
    open_leases = open_call_reader().open_leases()
    holders = {lease.holder for lease in open_leases}
    adopted = _adopt_leases(
        [lease for lease in open_leases if not _is_same_line(leases_in_redis.get(lease.holder), lease)]
    )
    leases_without_call = {holder: lease for holder, lease in leases_in_redis.items() if holder not in holders}
    ended_holders = open_call_reader().ended(leases_without_call)
    stale = [
        item
        for holder, lease in leases_without_call.items()
        if holder in ended_holders or int(lease.rpartition(":")[2]) <= now_ms - ORPHAN_GRACE_S * 1000
        for item in (holder, lease)
    ]
    ended = 0
    for chunk in _batched(stale, 2 * BATCH):
        answer = redis_scripts.run_script(redis_scripts.END_STALE, chunk)
        ended += answer if isinstance(answer, int) else 0
    if adopted or ended:
        log.info("lines_reconciled", adopted=adopted, ended=ended)
    return adopted, ended


def rebuild_leases() -> None:
    """Rebuild all lines and rates from Postgres. `core.redis.generation` calls this after Redis has lost them."""
    names = list(client(LEADS).scan_iter(match=f"{redis_scripts.base_key()}:*", count=1000))
    for chunk in _batched(names, BATCH):
        client(LEADS).unlink(*chunk)
    _adopt_leases(open_call_reader().open_leases())
    rate_limits.restore_requests()


def catch_up_leases(away_since: datetime) -> None:
    """Update Redis after an outage with the decisions that Postgres made meanwhile."""
    reconcile_pool()
    rate_limits.restore_requests(since=away_since)


def _adopt_leases(leases: Sequence[Lease]) -> int:
    changed = 0
    for chunk in _batched(leases, BATCH):
        args: list[Any] = [redis_scripts.offset_ms()]
        for lease in chunk:
            args += [lease.holder, lease.number_id, lease.line_slot, lease.pool_id, lease.pool_slot]
        changed += redis_scripts.run_script(redis_scripts.ADOPT, args)
    return changed


def _is_same_line(lease_in_redis: str | None, lease: Lease) -> bool:
    line = f"{lease.number_id}:{lease.line_slot}:{lease.pool_id}:{lease.pool_slot}:"
    return lease_in_redis is not None and lease_in_redis.startswith(line)


def _batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
