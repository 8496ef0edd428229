"""Read the schedule, the ready queues and the dialers from Redis, for metrics and pages.

Every function raises any of REDIS_ERRORS if Redis is unavailable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dispatch.capacity import redis_scripts
from dispatch.core import clock
from dispatch.core.redis.client import LEADS, client
from dispatch.leads.redis_queue import base_key, to_ms


def schedule_size() -> int:
    """Return the number of leads in the schedule."""
    return int(client(LEADS).zcard(f"{base_key()}:schedule"))


def schedule_overdue() -> int:
    """Return the number of leads in the schedule that are due."""
    return int(client(LEADS).zcount(f"{base_key()}:schedule", "-inf", to_ms(clock.now())))


def ready_leads(pool_ids: Iterable[int]) -> dict[int, int]:
    """Return the number of ready leads by pool."""
    ids = list(pool_ids)
    return dict(zip(ids, _sizes_of(f"{base_key()}:room:{pool_id}" for pool_id in ids), strict=True))


def due_leads() -> int:
    """Return the number of due leads in Redis: in the schedule, ready, or held by a batch."""
    pools: Any = client(LEADS).smembers(f"{base_key()}:rooms")
    pools |= set(client(LEADS).zrange(f"{base_key()}:blocked", 0, -1))
    batches: Any = client(LEADS).zrange(f"{base_key()}:batches", 0, -1)
    names = [f"{base_key()}:room:{int(pool_id)}" for pool_id in pools]
    names += [f"{base_key()}:held:{name.decode()}" for name in batches]
    return schedule_overdue() + sum(_sizes_of(names))


def held_leads() -> dict[str, int]:
    """Return the number of leads that each living dialer has claimed and not completed."""
    living: Any = client(LEADS).zrange(f"{base_key()}:workers", 0, -1)
    batches: Any = client(LEADS).zrange(f"{base_key()}:batches", 0, -1)
    held = dict.fromkeys((name.decode() for name in living), 0)
    names = [name.decode() for name in batches]
    for name, count in zip(names, _sizes_of(f"{base_key()}:held:{name}" for name in names), strict=True):
        worker = name.rpartition(":")[0]
        if worker in held:
            held[worker] += count
    return held


def leased_lines(number_ids: Iterable[int]) -> dict[int, int]:
    """Return the number of lines of each number that are taken in Redis."""
    ids = list(number_ids)
    with client(LEADS).pipeline(transaction=False) as pipe:
        for number_id in ids:
            pipe.hlen(f"{redis_scripts.base_key()}:line:{number_id}")
        return dict(zip(ids, pipe.execute(), strict=True))


def _sizes_of(keys: Iterable[str]) -> list[int]:
    with client(LEADS).pipeline(transaction=False) as pipe:
        for name in keys:
            pipe.zcard(name)
        return list(pipe.execute())
