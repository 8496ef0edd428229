"""Reserve lines and rate tokens in bulk.

Only Redis decides here. While it is unavailable or incomplete, nothing is granted, and the callers wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch.capacity import redis_scripts, rules, sql
from dispatch.capacity.sql import UsableNumber


@dataclass(frozen=True)
class PoolLimits:
    """The current limits of an unpaused pool, with its usable numbers by id."""

    pool_id: int
    organization_id: int
    numbers: dict[int, UsableNumber]
    concurrency: int
    rate_per_minute: int

    def arguments(self, purpose: str) -> list[Any]:
        """Return the arguments of scripts that take lines.

        These are pool, concurrency and rate; then per number its id, account, ms between requests, lines, number
        of slot ranges, and the ends of the ranges.
        """
        arguments: list[Any] = [self.pool_id, self.concurrency, self.rate_per_minute]
        for usable in self.numbers.values():
            ranges = rules.slot_ranges(usable.limits, purpose)
            interval_ms = rules.pace_interval_s(usable.calls_per_second) * 1000
            arguments += [usable.limits.id, usable.account_id, interval_ms, usable.limits.lines, len(ranges)]
            arguments += [edge for slot_range in ranges for edge in slot_range]
        return arguments

    def allows(self, purpose: str, number_id: int, line_slot: int, pool_slot: int) -> bool:
        """Return whether these limits allow a slot that was taken under other limits."""
        usable = self.numbers.get(number_id)
        if usable is None or pool_slot > self.concurrency:
            return False
        return any(low <= line_slot <= high for low, high in rules.slot_ranges(usable.limits, purpose))


def load_pool_limits(pool_id: int) -> PoolLimits | None:
    """Return the current limits, or None while the pool is paused or has no usable number."""
    usable = {number.limits.id: number for number in sql.usable_numbers(pool_id)()}
    if not usable:
        return None
    first = next(iter(usable.values()))
    return PoolLimits(pool_id, first.organization_id, usable, first.concurrency, first.rate_per_minute or 0)


def take_rate_tokens(
    account_id: int,
    calls_per_second: float,
    pool_id: int,
    rate_per_minute: int,
    wanted: int,
    not_before_s: Sequence[float] = (),
) -> list[float]:
    """Take up to `wanted` rate tokens. Return for each the seconds until its request may be sent.

    The seconds are at most 0.1. If fewer tokens than wanted are returned, request the rest later. `not_before_s`:
    for requests that are not due yet, the seconds from now until each is due, ascending; no token is earlier than
    its request is due.
    """
    interval_ms = rules.pace_interval_s(calls_per_second) * 1000
    answer = redis_scripts.run_or_none(
        redis_scripts.TAKE_MANY,
        redis_scripts.offset_ms(),
        account_id,
        interval_ms,
        pool_id,
        rate_per_minute,
        wanted,
        *(seconds * 1000 for seconds in not_before_s),
    )
    if answer is None:
        return []
    if not_before_s:
        return [float(moment_ms) / 1000 for moment_ms in answer[1 : 1 + int(answer[0])]]
    taken, first_ms = int(answer[0]), float(answer[1])
    return [(first_ms + n * interval_ms) / 1000 for n in range(taken)]


def pause_account(account_id: int, seconds: float) -> None:
    """Pause the account's bulk requests for `seconds`, because the provider asked it to wait."""
    redis_scripts.run_or_none(
        redis_scripts.PAUSE_ACCOUNT, redis_scripts.offset_ms(), account_id, max(1, int(seconds * 1000))
    )
