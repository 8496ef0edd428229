"""What a proposal is made from, and lines and rates by Postgres alone, for when Redis is gone.

Without Redis proposers do not see each other's uncommitted calls, so each locks the slot it proposes until its
transaction ends; whoever finds a slot locked tries the next."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce

from dispatch.capacity import rules
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.capacity.truth import truth
from dispatch.core import statements

_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
MINUTE = timedelta(minutes=1)

_USABLE = """
SELECT n.id, n.max_channels, n.reserved_for_alerts, n.reserved_for_offers, n.account_id, n.phone, p.concurrency,
       p.rate_per_minute, a.calls_per_second
FROM capacity_outboundnumber n
JOIN capacity_dispatchpool p ON p.id = n.pool_id
JOIN capacity_provideraccount a ON a.id = n.account_id
WHERE n.pool_id = %s AND NOT n.is_paused AND NOT p.is_paused AND a.is_active
ORDER BY n.phone
"""


@dataclass(frozen=True)
class Usable:
    """A number that may be called from now; `concurrency` and `rate_per_minute` are its pool's,
    `calls_per_second` its account's."""

    limits: rules.NumberLimits
    account_id: int
    phone: str
    concurrency: int
    rate_per_minute: int | None
    calls_per_second: float


def usable_numbers(pool_id: int) -> list[Usable]:
    """The numbers of a pool that is not paused, with its limits as they are now."""
    return [Usable(rules.NumberLimits(*row[:4]), *row[4:]) for row in statements.rows(_USABLE, [pool_id])]


def propose(
    pool: DispatchPool, purpose: str, holder: str, numbers: list[rules.NumberLimits]
) -> tuple[int, int, int] | str:
    """(number id, line slot, pool slot), or the reason why there is none. Needs a transaction."""
    lines: dict[int, set[int]] = defaultdict(set)
    in_pool: set[int] = set()
    for lease in truth().open_leases_of(pool.pk, [number.id for number in numbers]):
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
    """Seconds until account and pool may ask the provider; 0: now. Holds both until the transaction ends, in which
    the request must be written."""
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [f"rate:account:{account.pk}"])
        cursor.execute(_LOCK, [f"rate:pool:{pool.pk}"])
    free_at = [now]
    interval = timedelta(seconds=rules.pace_interval_s(account.calls_per_second))
    if last := truth().requests_of_account(account.pk, now - interval, 1):
        free_at.append(last[0] + interval)
    if rate := pool.rate_per_minute:
        requests = truth().requests_of_pool(pool.pk, now - MINUTE, rate)
        if len(requests) == rate:
            free_at.append(requests[-1] + MINUTE)
    return (max(free_at) - now).total_seconds()


def _locked(kind: str, row_id: int, slot: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(_TRY_LOCK, [f"{kind}:{row_id}:{slot}"])
        row = cursor.fetchone()
    return bool(row and row[0])


def open_calls(model: type[DispatchPool] | type[OutboundNumber]) -> Coalesce:
    """How many calls of the row are open; the table of calls lies above, and is known by the relation."""
    relation: Any = model._meta.get_field("calls")
    calls = relation.related_model.objects.filter(**{relation.field.name: OuterRef("pk")}, ended_at=None)
    counted = calls.order_by().values(relation.field.name).annotate(n=Count("*")).values("n")
    return Coalesce(Subquery(counted), 0)
