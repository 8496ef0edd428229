"""What the dispatcher process runs for leads."""

from __future__ import annotations

import time

import structlog
from django.conf import settings

from dispatch.core import generation
from dispatch.core.loops import Loop, Service
from dispatch.core.redis import REDIS_ERRORS
from dispatch.leads import dialer, measures, schedule
from dispatch.leads.models import EngineSwitch
from dispatch.leads.services import lifting, repairing, switches

log = structlog.get_logger(__name__)

# For so long (real seconds) a switch that was read is believed.
SWITCH_S = 0.5
_UNREAD = (float("-inf"), False)
_switch: tuple[float, bool] = _UNREAD
_away = False
_sweep = repairing.Sweep()


def promote() -> float | None:
    """Makes due leads ready; sleeps until the next is due, or for a tick. An earlier one wakes it."""
    global _away
    tick = settings.LEADS_TICK_S
    if _is_paused():
        return tick
    try:
        with measures.tick.time():
            count, next_s = schedule.promote(settings.LEADS_PROMOTE_BATCH)
    except schedule.NotReady:
        generation.ensure()
        return tick
    except REDIS_ERRORS as error:
        if not _away:
            log.warning("nothing is promoted until Redis is back", error=str(error))
        _away = True
        return tick
    if _away:
        log.info("Redis is back")
    _away = False
    if count:
        measures.promoted.inc(count)
    if count == settings.LEADS_PROMOTE_BATCH:
        return 0.0
    return tick if next_s is None else min(next_s, tick)


def _is_paused() -> bool:
    global _switch
    read_at, paused = _switch
    if time.monotonic() - read_at > SWITCH_S:
        paused = EngineSwitch.objects.filter(promoter_paused=True).exists()
        _switch = (time.monotonic(), paused)
    return paused


def forget() -> None:
    """Reads the switch anew, and knows of no outage (tests)."""
    global _switch, _away
    _switch, _away = _UNREAD, False


def schedule_near() -> None:
    """Schedules what is due soon and in no set."""
    repairing.schedule_near()


def sweep() -> float | None:
    """One page of the whole backlog; on at once after Redis has lost its data."""
    try:
        return 0.0 if _sweep.step() else None
    except REDIS_ERRORS:
        return None


def bury_workers() -> None:
    """Makes ready again what dead dialers held."""
    try:
        repairing.bury_workers()
    except schedule.UNAVAILABLE as error:
        log.debug("dead dialers cannot be seen, Redis is away", error=str(error))


def end_stale_claims() -> float | None:
    """Ends claims that nobody ended."""
    return 0.0 if repairing.end_stale_claims() >= repairing.STALE_BATCH else None


def release_lifted() -> None:
    """Makes leads due again that a switch holds no more; woken by whoever lifts one."""
    lifting.release_lifted()


LOOPS: list[Loop | Service] = [
    Loop(schedule.PROMOTER, promote, settings.LEADS_TICK_S, elected=True),
    Service("leads_dialer", dialer.run),
    Loop("leads_near", schedule_near, settings.LEADS_NEAR_INTERVAL_S, elected=True),
    Loop("leads_sweep", sweep, settings.LEADS_SWEEP_INTERVAL_S, elected=True),
    Loop("leads_workers", bury_workers, settings.LEADS_WORKERS_INTERVAL_S, elected=True),
    Loop(switches.LIFTED, release_lifted, settings.LEADS_LIFTED_INTERVAL_S, elected=True),
    Loop("leads_stale", end_stale_claims, settings.LEADS_STALE_INTERVAL_S, elected=True),
]
