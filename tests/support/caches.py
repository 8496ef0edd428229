"""Reset the caches of a process that last for seconds: outages and recent reads."""

from __future__ import annotations

from accounts import limits
from accounts import loops as accounts_loops
from accounts.auth import throttling
from dispatch.capacity import redis_scripts
from dispatch.console import health
from dispatch.console.board import response_cache
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.observability import liveness
from dispatch.core.privacy import replay
from dispatch.core.runtime import reachability
from dispatch.leads import eligibility, progress
from dispatch.leads import loops as leads_loops
from dispatch.leads.services import claims
from dispatch.outbox import direct_delivery
from dispatch.schedules import exclusion_cache
from dispatch.technicians import road_times
from dispatch.telephony.providers.backoff import backoff
from notifications import live_updates
from notifications import loops as notifications_loops


def as_if_just_started() -> None:
    """Reset all caches, as in a process that has just started."""
    CircuitBreaker.reset_all()
    redis_scripts.reset()
    limits.reset()
    accounts_loops.walk.reset()
    throttling.local.reset()
    throttling.blocked_senders.reset()
    eligibility.reset()
    health.reset()
    response_cache.reset()
    progress.reset()
    leads_loops.reset()
    claims.reset()
    live_updates.reset()
    RecentlyBlocked.reset_all()
    replay.reset()
    liveness.reset()
    notifications_loops.early.reset()
    backoff.reset_all()
    reachability.reset()
    direct_delivery.close()
    exclusion_cache.reset()
    road_times.reset()
