"""What Redis says of the schedule, the rooms and the dialers, for metrics and pages.

Every function raises REDIS_ERRORS when Redis is away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dispatch.capacity import fast
from dispatch.core import clock
from dispatch.core.redis import client
from dispatch.leads.schedule import base_key, ms


def schedule_size() -> int:
    """Leads in the schedule."""
    return int(client().zcard(f"{base_key()}:schedule"))


def schedule_overdue() -> int:
    """Leads in the schedule whose time has come."""
    return int(client().zcount(f"{base_key()}:schedule", "-inf", ms(clock.now())))


def ready(pool_ids: Iterable[int]) -> dict[int, int]:
    """Ready leads by pool."""
    ids = list(pool_ids)
    return dict(zip(ids, _cards(f"{base_key()}:room:{pool_id}" for pool_id in ids), strict=True))


def held() -> dict[str, int]:
    """Leads that each living dialer has taken and not settled."""
    found: Any = client().zrange(f"{base_key()}:workers", 0, -1)
    names = [name.decode() for name in found]
    return dict(zip(names, _cards(f"{base_key()}:held:{name}" for name in names), strict=True))


def leased(number_ids: Iterable[int]) -> dict[int, int]:
    """Lines of each number that Redis believes to be taken."""
    ids = list(number_ids)
    with client().pipeline(transaction=False) as pipe:
        for number_id in ids:
            pipe.hlen(f"{fast.base_key()}:line:{number_id}")
        return dict(zip(ids, pipe.execute(), strict=True))


def _cards(keys: Iterable[str]) -> list[int]:
    with client().pipeline(transaction=False) as pipe:
        for name in keys:
            pipe.zcard(name)
        return list(pipe.execute())
