"""Measure the time from a pause to the last call request, and from lifting it to the first.

Each switch that holds leads back is toggled as by the API, while a dispatcher process calls a long backlog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple

from dispatch.capacity import services as capacity
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.redis import generation
from dispatch.leads.models import Lead
from dispatch.leads.services import switches
from dispatch.telephony.models import Call
from tests.benchmarks import Result, leads_ground, noop_provider
from tests.benchmarks.leads_ground import Tenant
from tests.benchmarks.leads_site import LONGEST_S, running
from tests.support.waiting import wait_until

LOOPS = "redis_generation,leads_promoter,leads_dialer,leads_lifted"
BACKLOG, PER_S, TIMES = 10_000, 50.0, 3
# So long it is looked whether somebody is called yet.
STILL_S = 2.0
LATE_S, NEWEST = 0.2, 500


class Switch(NamedTuple):
    name: str
    flip: Callable[[Tenant, bool], object]


def _number(tenant: Tenant, paused: bool) -> None:
    for number in OutboundNumber.objects.filter(pool=tenant.campaign.pool):
        capacity.set_paused(number, paused, actor=SYSTEM)


SWITCHES = (
    Switch("kill switch", lambda tenant, on: switches.set_engine(is_stopped=on, actor=SYSTEM)),
    Switch("promoter", lambda tenant, on: switches.set_engine(promoter_paused=on, actor=SYSTEM)),
    Switch(
        "organization",
        lambda tenant, on: switches.set_dispatch(tenant.organization_id, is_paused=on, actor=SYSTEM),
    ),
    Switch("campaign", lambda tenant, on: switches.pause_campaign(tenant.campaign.pk, on, actor=SYSTEM)),
    Switch("pool", lambda tenant, on: capacity.set_paused(tenant.campaign.pool, on, actor=SYSTEM)),
    Switch("number", _number),
)


def run() -> Iterator[Result]:
    (tenant,) = leads_ground.tenants("noop-20ms", 1)
    generation.ensure_generation()
    # One after another, so that one is always waiting to be promoted.
    entries = leads_ground.add_leads(tenant, BACKLOG, due_in_s=5.0, step_s=1 / PER_S)
    leads_ground.put(entries)
    with running(1, LOOPS):
        wait_until(lambda: len(_asked()) > PER_S, LONGEST_S)
        for switch in SWITCHES:
            last, first = zip(*(_once(tenant, switch) for _ in range(TIMES)), strict=True)
            name = f"{switch.name} paused: the last call is asked for, worst of {TIMES}"
            yield Result(name, max(last), "ms", "<= 1000")
            yield Result(f"  lifted: the first is asked for, worst of {TIMES}", max(first), "ms", "<= 1000")
    calls = Call.objects.filter(purpose="lead", subject_id__in=[entry.lead_id for entry in entries])
    yield Result("  called", calls.count(), "leads")
    yield Result("  called twice", calls.count() - calls.values("subject_id").distinct().count(), "leads", "<= 0")


def _once(tenant: Tenant, switch: Switch) -> tuple[float, float]:
    """(ms until the last was asked for, ms from lifting until the first was)."""
    switch.flip(tenant, True)
    paused_at = time.time()
    threading.Event().wait(STILL_S)
    last = max(_asked())
    assert _overdue(tenant) >= PER_S, "nobody was held back"
    switch.flip(tenant, False)
    lifted_at = time.time()
    wait_until(lambda: max(_asked()) > last, LONGEST_S, f"nobody is called again: {switch.name}")
    first = min(moment for moment in _asked() if moment > last)
    wait_until(lambda: _overdue(tenant) == 0, LONGEST_S, f"those held back are not called: {switch.name}")
    return max(0.0, (last - paused_at) * 1000), (first - lifted_at) * 1000


def _asked() -> list[float]:
    """When the newest calls were asked for."""
    newest = Call.objects.filter(purpose="lead").exclude(sid=None).order_by("-pk")[:NEWEST]
    return [noop_provider.asked_at(sid) for sid in newest.values_list("sid", flat=True)]


def _overdue(tenant: Tenant) -> int:
    """Leads that should have been called by now."""
    before = clock.now() - timedelta(seconds=LATE_S)
    return Lead.objects.filter(campaign=tenant.campaign, status="backlog", wanted_at__lt=before).count()
