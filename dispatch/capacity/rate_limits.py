"""Limit requests to the provider, per account and per pool.

An account's calls per second are paced. A pool's calls per minute are counted in any period of sixty seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime, timedelta

from dispatch.capacity import redis_scripts, rules, sql
from dispatch.capacity.lease_reconciliation import open_call_reader
from dispatch.capacity.models import DispatchPool, ProviderAccount
from dispatch.core import clock


def take_request_token(account: ProviderAccount, pool: DispatchPool, now: datetime) -> float:
    """Take a token for one request, and return 0 if the request may be sent now.

    Otherwise return the seconds to wait; then no token is taken. Call it in the transaction that writes `now` as
    the time of the request. Without Redis, Postgres counts these times, and Redis gets them afterwards.
    """
    interval_ms = rules.pace_interval_s(account.calls_per_second) * 1000
    answer = redis_scripts.run_or_none(
        redis_scripts.TAKE,
        redis_scripts.offset_ms(),
        account.pk,
        interval_ms,
        pool.pk,
        pool.rate_per_minute or 0,
        since=now,
    )
    if answer is None:
        redis_scripts.add_after_commit(now)
        return sql.wait_s(account, pool, now)
    return int(answer) / 1000


def restore_requests(since: datetime | None = None) -> None:
    """Add the last minute's requests, or only those from `since` on, to Redis, from the rows of the calls.

    Raises any of REDIS_ERRORS.
    """
    a_minute_ago = clock.now() - timedelta(minutes=1)
    since = a_minute_ago if since is None else max(since, a_minute_ago)
    last: dict[int, datetime] = {}
    windows: dict[int, list[datetime]] = defaultdict(list)
    for account_id, pool_id, at in open_call_reader().requests_since(since):
        last[account_id] = at
        windows[pool_id].append(at)
    for account in ProviderAccount.objects.filter(pk__in=last).only("calls_per_second"):
        free_at = _ms(last[account.pk]) + rules.pace_interval_s(account.calls_per_second) * 1000
        redis_scripts.run_script(redis_scripts.RESTORE_RATE, ["pace", account.pk, math.ceil(free_at)])
    for pool_id, moments in windows.items():
        redis_scripts.run_script(redis_scripts.RESTORE_RATE, ["window", pool_id, *map(_ms, moments[-7000:])])


def _ms(moment: datetime) -> int:
    return math.ceil(moment.timestamp() * 1000)
