"""Request an outside address while alerts and loops work, so that someone notices when they stop.

Alerts about an installation come from that installation. If all of it is down, only an outside service that misses
the heartbeat can say so. The heartbeat is withheld, not sent with an error: silence needs no working part.
"""

from __future__ import annotations

import asyncio

import structlog
from django.conf import settings

from dispatch.core import clock
from dispatch.core.db import write_probe
from dispatch.core.events.readers import lagging
from dispatch.core.http.client import ForbiddenTarget, HttpClient, TargetError
from dispatch.core.models import Leadership
from dispatch.core.runtime.loops import all_loops
from notifications import metrics

log = structlog.get_logger(__name__)

LOOP = "heartbeat"
TIMEOUT_S = 15.0


def send_heartbeat() -> None:
    """Send one heartbeat, unless something is wrong or DISPATCH_HEARTBEAT_URL is empty.

    A receiver that fails is counted and logged. It is no reason to hand the loop to another process.
    """
    if not settings.DISPATCH_HEARTBEAT_URL:
        return
    if problems := find_problems():
        metrics.heartbeats.labels("withheld").inc()
        log.error("heartbeat_withheld", problems="; ".join(problems))
        return
    try:
        status = asyncio.run(_request(settings.DISPATCH_HEARTBEAT_URL))
    except (TargetError, ForbiddenTarget) as error:
        metrics.heartbeats.labels("failed").inc()
        log.warning("heartbeat_failed", error=str(error))
        return
    is_sent = 200 <= status < 300
    metrics.heartbeats.labels("sent" if is_sent else "failed").inc()
    if not is_sent:
        log.warning("heartbeat_failed", status=status)


def find_problems() -> list[str]:
    """Return what does not work: writes, elected loops without a leader, late alerts, lagging event readers."""
    held = set(Leadership.objects.filter(expires_at__gt=clock.now()).values_list("name", flat=True))
    elected = {loop.name for loop in all_loops() if loop.elected}
    problems = [f"no leader runs {name}" for name in sorted(elected) if f"loop:{name}" not in held]
    if fault := write_probe.find_fault():
        problems.append(fault.words)
    (((), late),) = metrics.alerts_overdue()
    if late:
        problems.append(f"{late:g} alerts do not escalate")
    problems += [f"the event reader {name} is {lag_s:.0f} s behind" for name, lag_s in sorted(lagging().items())]
    return problems


async def _request(url: str) -> int:
    async with HttpClient() as client:
        return (await client.get(url, {}, TIMEOUT_S)).status
