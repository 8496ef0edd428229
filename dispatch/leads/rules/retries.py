"""When a lead is called again, and how often it may be: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

DAY = timedelta(hours=24)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Retry:
    """What follows one outcome of an attempt: after `delay_s` seconds, times `factor` for each attempt before, at
    most `longest_s`, varied by up to `jitter` of itself (0 to 1) to either side. `attempts`: how many there may be
    of this campaign's calls to the lead, the first among them."""

    delay_s: float
    factor: float = 1.0
    longest_s: float = 86_400.0
    jitter: float = 0.0
    attempts: int = 3


def retry_at(ended: datetime, attempt: int, rule: Retry | None, chance: float) -> datetime | None:
    """When the attempt after the `attempt`th (from 1) may begin, or None when there is none. `chance`: 0 to 1.

    Never before `ended`, and rounded up to the millisecond, which is what the schedule counts in."""
    if rule is None or attempt >= rule.attempts:
        return None
    delay = min(rule.delay_s * rule.factor ** min(attempt - 1, 64), rule.longest_s)
    delay *= 1.0 + rule.jitter * (2.0 * chance - 1.0)
    return up_to_ms(ended + timedelta(seconds=max(0.0, delay)))


def room_at(now: datetime, began: Sequence[datetime], limit: int, window: timedelta = DAY) -> datetime | None:
    """The first moment from `now` on at which fewer than `limit` of these lie in the `window` before it;
    None when the limit is 0 and there will never be room. A rolling window: midnight means nothing to it."""
    if limit <= 0:
        return None
    counted = sorted(moment for moment in began if moment > now - window)
    if len(counted) < limit:
        return now
    return up_to_ms(counted[-limit] + window)


def up_to_ms(moment: datetime) -> datetime:
    """The same moment, or the next whole millisecond after it: what is due must never start early."""
    over = timedelta(microseconds=moment.microsecond % 1000)
    return moment if not over else moment - over + _MS
