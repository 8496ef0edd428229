"""Define the leads' loops in the dispatcher process."""

from __future__ import annotations

import time

import structlog
from django.conf import settings

from dispatch.core.redis import generation
from dispatch.core.redis.client import LEADS, REDIS_ERRORS
from dispatch.core.runtime.loops import Loop, Service
from dispatch.leads import counters, dialer, redis_queue, sql
from dispatch.leads.models import EngineSwitch
from dispatch.leads.pool_rotation import DIALER
from dispatch.leads.services import reconciliation, switches

log = structlog.get_logger(__name__)

# How many ticks the promoter sleeps while no lead is due soon. This only delays leads whose wake-up was lost.
IDLE_TICKS = 5
# How long a switch is cached, in real seconds.
SWITCH_S = 0.5
_UNREAD = (float("-inf"), False)
_switch: tuple[float, bool] = _UNREAD
_away = False
_sweep = reconciliation.Sweep()


def promote_due() -> float | None:
    """Make due leads ready, and return the seconds until the next is due, at most a tick.

    A lead that becomes due earlier wakes the loop. Whether the promoter is paused is read only if a lead is due
    within a tick, and so before it is due. If none is, the loop sleeps for up to IDLE_TICKS.
    """
    tick = settings.LEADS_TICK_S
    try:
        if _is_switch_old():
            _, next_s = redis_queue.promote_due(0)
            if next_s is None or next_s > tick:
                _set_away(False)
                return tick * IDLE_TICKS if next_s is None else min(next_s - tick, tick * IDLE_TICKS)
        if _is_paused():
            return tick
        with counters.tick.time():
            count, next_s = redis_queue.promote_due(settings.LEADS_PROMOTE_BATCH)
    except redis_queue.NotReady:
        generation.ensure_generation()
        return tick
    except REDIS_ERRORS as error:
        _set_away(True, error)
        return tick
    _set_away(False)
    if count:
        counters.promoted.inc(count)
    if count == settings.LEADS_PROMOTE_BATCH:
        return 0.0
    return tick if next_s is None else min(next_s, tick)


def _set_away(is_away: bool, error: object = None) -> None:
    """Record whether Redis is unavailable, and log when that changes."""
    global _away
    if is_away and not _away:
        log.warning("promotion_paused_redis_unavailable", error=str(error))
    elif _away and not is_away:
        log.info("redis_recovered")
    _away = is_away


def _is_switch_old() -> bool:
    return time.monotonic() - _switch[0] > SWITCH_S


def _is_paused() -> bool:
    global _switch
    paused = _switch[1]
    if _is_switch_old():
        paused = EngineSwitch.objects.filter(promoter_paused=True).exists()
        _switch = (time.monotonic(), paused)
    return paused


def reset() -> None:
    """Reset the cached switch and outage (tests)."""
    global _switch, _away
    _switch, _away = _UNREAD, False


def schedule_near() -> None:
    """Schedule leads that are due soon and missing from Redis."""
    reconciliation.schedule_near()


def sweep_backlog() -> float | None:
    """Compare a page of the backlog with the schedule. Continues immediately after Redis has lost its data."""
    try:
        return 0.0 if _sweep.step() else None
    except REDIS_ERRORS:
        return None


def reap_batches() -> None:
    """Requeue the leads of batches whose lease has ended."""
    try:
        reconciliation.reap_batches()
    except redis_queue.UNAVAILABLE as error:
        log.debug("leads_cannot_be_reaped", error=str(error))


def end_stale_claims() -> float | None:
    """End stale claims. Runs again immediately after a full batch."""
    return 0.0 if reconciliation.end_stale_claims() >= reconciliation.STALE_BATCH else None


def release_lifted() -> None:
    """Release leads that no switch holds any longer. Notified when a switch is lifted."""
    switches.release_lifted()


LOOPS: list[Loop | Service] = [
    Loop(redis_queue.PROMOTER, promote_due, settings.LEADS_TICK_S, elected=True, needs_redis=LEADS),
    Service(DIALER, dialer.run_dialer, connections=settings.LEADS_CLAIMERS + 2),  # claims, cancellations, results
    Loop("leads_near", schedule_near, settings.LEADS_NEAR_INTERVAL_S, elected=True, needs_redis=LEADS),
    Loop(
        "leads_sweep",
        sweep_backlog,
        settings.LEADS_SWEEP_INTERVAL_S,
        elected=True,
        needs_redis=LEADS,
        due=sql.IS_ANY_WAITING,
    ),
    Loop("leads_workers", reap_batches, settings.LEADS_WORKERS_INTERVAL_S, elected=True, needs_redis=LEADS),
    Loop(switches.LIFTED, release_lifted, settings.LEADS_LIFTED_INTERVAL_S, elected=True),
    Loop("leads_stale", end_stale_claims, settings.LEADS_STALE_INTERVAL_S, elected=True),
]
