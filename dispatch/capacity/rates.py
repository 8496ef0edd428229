"""How fast the provider may be asked: an account's calls per second, paced, and a pool's calls per minute, in any
sixty seconds."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime, timedelta

from dispatch.capacity import fast, rules, scripts, sql
from dispatch.capacity.models import DispatchPool, ProviderAccount
from dispatch.capacity.truth import truth
from dispatch.core import clock


def take(account: ProviderAccount, pool: DispatchPool) -> float:
    """0 when the provider may be asked now, and the request counts; else the seconds to wait, and nothing counts.

    Call it in the transaction that writes the request's moment: without Redis, Postgres counts those."""
    interval_ms = rules.pace_interval_s(account.calls_per_second) * 1000
    answer = fast.ask(scripts.TAKE, fast.offset_ms(), account.pk, interval_ms, pool.pk, pool.rate_per_minute or 0)
    if answer is None:
        return sql.wait_s(account, pool, clock.now())
    return int(answer) / 1000


def restore(since: datetime | None = None) -> None:
    """Adds the last minute's requests, or only those after `since`, to what Redis knows, as the calls tell them.

    Raises one of REDIS_ERRORS."""
    a_minute_ago = clock.now() - timedelta(minutes=1)
    since = a_minute_ago if since is None else max(since, a_minute_ago)
    last: dict[int, datetime] = {}
    windows: dict[int, list[datetime]] = defaultdict(list)
    for account_id, pool_id, at in truth().requests_since(since):
        last[account_id] = at
        windows[pool_id].append(at)
    for account in ProviderAccount.objects.filter(pk__in=last):
        free_at = _ms(last[account.pk]) + rules.pace_interval_s(account.calls_per_second) * 1000
        fast.run(scripts.RESTORE_RATE, ["pace", account.pk, math.ceil(free_at)])
    for pool_id, moments in windows.items():
        fast.run(scripts.RESTORE_RATE, ["window", pool_id, *map(_ms, moments[-7000:])])


def _ms(moment: datetime) -> int:
    return math.ceil(moment.timestamp() * 1000)
