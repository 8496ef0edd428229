"""Read the input of a line proposal, and decide about lines and rates in Postgres while Redis is unavailable.

Without Redis, concurrent transactions do not see each other's uncommitted calls. Each transaction therefore locks
the slot that it proposes until it ends, and tries the next slot if another session has locked one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce

from dispatch.capacity import rules
from dispatch.capacity.lease_reconciliation import open_call_reader
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.db import prepared

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
MINUTE = timedelta(minutes=1)

_USABLE = """
SELECT n.id, n.max_channels, n.reserved_for_alerts, n.reserved_for_offers, n.account_id, n.phone, p.concurrency,
       p.rate_per_minute, a.calls_per_second, n.organization_id,
       n.rests_until > %s AS is_resting
FROM capacity_outboundnumber n
JOIN capacity_dispatchpool p ON p.id = n.pool_id
JOIN capacity_provideraccount a ON a.id = n.account_id
JOIN accounts_organization o ON o.id = n.organization_id
WHERE n.pool_id = %s AND NOT n.is_paused AND NOT p.is_paused AND a.is_active AND o.is_active
    AND (a.outage = '' OR a.is_on_trial)
ORDER BY n.phone
"""


@dataclass(frozen=True)
class UsableNumber:
    """A number that may be used now.

    `concurrency` and `rate_per_minute` are its pool's, `calls_per_second` its account's.
    """

    limits: rules.NumberLimits
    account_id: int
    phone: str
    concurrency: int
    rate_per_minute: int | None
    calls_per_second: float
    organization_id: int
    is_resting: bool | None = False


def usable_numbers(pool_id: int, *, also_resting: bool = False) -> Callable[[], list[UsableNumber]]:
    """Return a function for the usable numbers of a pool with their current limits; none if the pool is paused.

    Numbers that rest are left out unless all of them do, or with `also_resting`.
    """
    find_rows = prepared.fetch_later(_USABLE, [clock.now(), pool_id])

    def answer() -> list[UsableNumber]:
        numbers = [UsableNumber(rules.NumberLimits(*row[:4]), *row[4:]) for row in find_rows()]
        awake = [number for number in numbers if not number.is_resting]
        return numbers if also_resting else awake or numbers

    return answer


def propose_line(
    pool: DispatchPool, purpose: str, holder: str, numbers: list[rules.NumberLimits]
) -> tuple[int, int, int] | str:
    """Return (number id, line slot, pool slot), or the reason why there is no line. Needs a transaction."""
    lines: dict[int, set[int]] = defaultdict(set)
    in_pool: set[int] = set()
    for lease in open_call_reader().open_leases_of(pool.pk, [number.id for number in numbers]):
        lines[lease.number_id].add(lease.line_slot)
        if lease.pool_id == pool.pk:
            in_pool.add(lease.pool_slot)
    pool_slot = next(
        (s for s in rules.free_pool_slots(pool.concurrency, in_pool) if _locked("pool", pool.pk, s)), None
    )
    if pool_slot is None:
        return "pool_full"
    for number_id, slot in rules.free_lines(numbers, purpose, lines):
        if _locked("line", number_id, slot):
            return number_id, slot, pool_slot
    return "lines_busy"


def wait_s(account: ProviderAccount, pool: DispatchPool, now: datetime) -> float:
    """Return the seconds until account and pool may make a request; 0 means now.

    Locks both until the end of the transaction, which must write the request.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [f"rate:account:{account.pk}"])
        cursor.execute(_LOCK, [f"rate:pool:{pool.pk}"])
    free_at = [now]
    interval = timedelta(seconds=rules.pace_interval_s(account.calls_per_second))
    if last := open_call_reader().requests_of_account(account.pk, now - interval, 1):
        free_at.append(last[0] + interval)
    if rate := pool.rate_per_minute:
        requests = open_call_reader().requests_of_pool(pool.pk, now - MINUTE, rate)
        if len(requests) == rate:
            free_at.append(requests[-1] + MINUTE)
    return (max(free_at) - now).total_seconds()


def _locked(kind: str, row_id: int, slot: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(_TRY_LOCK, [f"{kind}:{row_id}:{slot}"])
        row = cursor.fetchone()
    return bool(row and row[0])


def open_calls(model: type[DispatchPool] | type[OutboundNumber]) -> Coalesce:
    """Return the number of open calls of the row, as an expression.

    It uses the relation, because the table of calls belongs to a higher slice.
    """
    relation: Any = model._meta.get_field("calls")
    calls = relation.related_model.objects.filter(**{relation.field.name: OuterRef("pk")}, ended_at=None)
    counted = calls.order_by().values(relation.field.name).annotate(n=Count("*")).values("n")
    return Coalesce(Subquery(counted), 0)
