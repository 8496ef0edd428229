"""Assign slots and tokens of message pools to requests that are about to start.

The locks on the pools' gates make the counts exact across all processes, whether a message or a direct request
takes the slot. Unique constraints guarantee it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.outbox import sql
from dispatch.outbox.models import DirectRequest, Message
from dispatch.outbox.rules import admission


@dataclass(frozen=True)
class Assignment:
    """A slot, or None and why there is none: "pool paused", "rate" or "slot".

    `wait_s` is the time until there is a token for this request, if the rate is the reason. `is_last` is whether
    the pool is full now.
    """

    slot: int | None = None
    why: str = ""
    wait_s: float = 0.0
    is_last: bool = False


def find_full_pools(pools: Collection[DispatchPool]) -> set[int]:
    """Return the ids of the pools whose slots are all held, by messages and by direct requests."""
    held: Counter[int] = Counter()
    for rows in (
        Message.objects.filter(in_flight=True, pool__in=pools),
        DirectRequest.objects.filter(lease_until__gt=clock.now(), pool__in=pools),
    ):
        held.update(dict(rows.order_by().values_list("pool").annotate(Count("pk"))))
    return {pool.pk for pool in pools if held[pool.pk] >= pool.concurrency}


def assign_slots(pool_ids: Sequence[int], now: datetime) -> list[Assignment]:
    """Return one assignment per request; `pool_ids` names the pool of each. Call it in a transaction.

    The caller stores the slots before the transaction ends.
    """
    pools = sorted(set(pool_ids))
    locked = sql.fetch_later(sql.LOCK_GATES, {"ids": pools})
    in_use = sql.fetch_later(sql.SLOTS_IN_USE, {"ids": pools})
    gates, slots_used = locked(), in_use()
    if len(gates) < len(pools):
        sql.execute(sql.ADD_GATES, {"ids": pools, "now": now})
        gates = sql.fetch_all(sql.LOCK_GATES, {"ids": pools})
        slots_used = sql.fetch_all(sql.SLOTS_IN_USE, {"ids": pools})
    used: dict[int, list[int]] = defaultdict(list)
    for pool_id, slot in slots_used:
        used[pool_id].append(slot)
    requests: dict[int, list[int]] = defaultdict(list)
    for index, pool_id in enumerate(pool_ids):
        requests[pool_id].append(index)
    assigned = [Assignment(why="slot")] * len(pool_ids)
    buckets: list[tuple[int, datetime]] = []
    for pool_id, full_at, concurrency, rate, is_paused, at in gates:
        indexes = requests[pool_id]
        slots = [] if is_paused else admission.free_slots(concurrency, used[pool_id])
        tokens = admission.available_tokens(rate, full_at, at) if rate else len(indexes)
        count = min(len(indexes), len(slots), tokens)
        for index, slot in zip(indexes[:count], slots, strict=False):
            assigned[index] = Assignment(slot, is_last=count == len(slots))
        why = "pool paused" if is_paused else "rate" if count == tokens < len(slots) else "slot"
        if rate and count:
            full_at = admission.take_tokens(rate, full_at, at, count)
            buckets.append((pool_id, full_at))
        for place, index in enumerate(indexes[count:]):
            wait_s = admission.token_wait_s(rate, full_at, at, place) if rate and why == "rate" else 0.0
            assigned[index] = Assignment(why=why, wait_s=wait_s)
    if buckets:
        ids, fulls = sql.columns(buckets, 2)
        sql.execute(sql.SAVE_GATES, {"ids": ids, "fulls": fulls})
    return assigned
