"""Lines and rates by the hundred, for who calls in batches. Redis alone decides here: while it is gone, or does
not know enough, there is nothing to take, and whoever wants lines waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch.capacity import fast, rules, scripts, sql
from dispatch.capacity.sql import Usable


@dataclass(frozen=True)
class PoolLimits:
    """A pool that is not paused, as it is now: its numbers that may call, by id."""

    pool_id: int
    numbers: dict[int, Usable]
    concurrency: int
    rate_per_minute: int

    def arguments(self, purpose: str) -> list[Any]:
        """What a script that takes lines wants to know: pool, concurrency, rate, then per number: id, account, ms
        between its requests, lines, how many ranges of slots, and their ends."""
        found: list[Any] = [self.pool_id, self.concurrency, self.rate_per_minute]
        for usable in self.numbers.values():
            ranges = rules.slot_ranges(usable.limits, purpose)
            interval_ms = rules.pace_interval_s(usable.calls_per_second) * 1000
            found += [usable.limits.id, usable.account_id, interval_ms, usable.limits.lines, len(ranges)]
            found += [edge for both in ranges for edge in both]
        return found

    def allows(self, purpose: str, number_id: int, line_slot: int, pool_slot: int) -> bool:
        """Whether a slot that was taken by other limits is within these."""
        usable = self.numbers.get(number_id)
        if usable is None or pool_slot > self.concurrency:
            return False
        return any(low <= line_slot <= high for low, high in rules.slot_ranges(usable.limits, purpose))


def limits_of(pool_id: int) -> PoolLimits | None:
    """The limits as they are now; None while the pool is paused or has no number that may call."""
    usable = {number.limits.id: number for number in sql.usable_numbers(pool_id)}
    if not usable:
        return None
    one = next(iter(usable.values()))
    return PoolLimits(pool_id, usable, one.concurrency, one.rate_per_minute or 0)


def take(
    account_id: int,
    calls_per_second: float,
    pool_id: int,
    rate_per_minute: int,
    wanted: int,
    not_before_s: Sequence[float] = (),
) -> list[float]:
    """How many of `wanted` requests may be made about now: for each that may, and counts, the seconds from now at
    which it is its turn (at most 0.1). The rest must ask again.

    `not_before_s`: when some come a moment too soon, for each the seconds from now until it is wanted, ascending;
    its turn is not before."""
    interval_ms = rules.pace_interval_s(calls_per_second) * 1000
    answer = fast.ask(
        scripts.TAKE_MANY,
        fast.offset_ms(),
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


def hold_off(account_id: int, seconds: float) -> None:
    """The provider asked the account to wait: no batch takes anything of it until then."""
    fast.ask(scripts.HOLD_OFF, fast.offset_ms(), account_id, max(1, int(seconds * 1000)))
