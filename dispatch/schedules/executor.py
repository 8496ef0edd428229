"""The executor: every dispatcher process has one, which takes the due runs of the shards that it holds."""

from __future__ import annotations

from django.conf import settings

from dispatch.core import clock
from dispatch.schedules.services.claiming import claim, next_due
from dispatch.schedules.services.shards import keeper

# Never a busy loop, whatever is due.
SHORTEST_PAUSE_S = 0.001
# What is overdue and was not found is locked by somebody, or of a kind that this process does not know.
LOCKED_PAUSE_S = 0.1


def step() -> float | None:
    """One claim. Returns the seconds until something is due, at most the interval; 0 when there may be more
    now."""
    shards = keeper.held()
    if not shards:
        return None
    began = clock.now()
    done = claim(shards)
    if done.found:
        return 0.0
    at = next_due(shards)
    if at is None:
        return None
    now = clock.now()
    if at <= began:
        return LOCKED_PAUSE_S
    return min(max((at - now).total_seconds(), SHORTEST_PAUSE_S), settings.SCHEDULE_POLL_INTERVAL_S)
