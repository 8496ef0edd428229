"""The whole call of a lead: claim, request over HTTP, the provider's reports, outcome. CPU time per call counts.

Two dialers and one web process; the provider is another process that is not counted (`whole_provider`). In a busy
call the phone rings and is busy; in an answered call the prompt is fetched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import requests

from dispatch.core.redis import generation
from dispatch.telephony.models import Call
from tests.benchmarks import Result, leads_ground
from tests.benchmarks.jobs_site import Site, running
from tests.benchmarks.jobs_whole import provider_state, statements_per_unit
from tests.benchmarks.leads_ground import Tenant
from tests.benchmarks.measuring import median_and_spread
from tests.benchmarks.processes import kinds_of
from tests.benchmarks.table_statistics import ANALYZED, UNANALYZED, analyze, switch_autovacuum_off
from tests.benchmarks.whole_counts import counted, statements
from tests.support.waiting import wait_until

COUNT, RUNS, DIALERS = int(os.environ.get("BENCH_CALLS", "100")), 3, 2
REQUESTS = int(os.environ.get("BENCH_REQUESTS", "1000"))
PLANS = {"busy": "busy call", "accept": "answered call"}
TARGETS = {"busy": ("<= 2", ">= 700"), "accept": ("<= 2.2", ">= 450")}  # ms of CPU, and calls a second
LONGEST_S = 180.0


def run() -> Iterator[Result]:
    tenants = leads_ground.tenants("twilio", 2)
    generation.ensure_generation()
    switch_autovacuum_off()
    with running(dispatcher=False, provider=True, dialers=DIALERS) as site:
        for plan in PLANS:
            _call(site, tenants, plan, 40)  # every process has done its work before it is measured
        for state in (UNANALYZED, ANALYZED):
            if state == ANALYZED:
                analyze()
            for plan in PLANS:
                yield from whole(site, tenants, plan, state)
        for plan in PLANS:
            yield from counts(site, tenants, plan)
        yield from requests_alone(site, tenants)


def whole(site: Site, tenants: list[Tenant], plan: str, state: str) -> Iterator[Result]:
    """Leads that are due at once, until the last call is over."""
    spent, per_second, provider = [], [], []
    for _ in range(RUNS):
        with site.meter_ours() as meter, site.meter_provider() as beside:
            took_s = _call(site, tenants, plan, COUNT)
        provider.append(1000 * sum(beside.spent.values()) / COUNT)
        spent.append({kind: 1000 * cpu / COUNT for kind, cpu in kinds_of(meter.spent).items()})
        per_second.append(COUNT / took_s)
    name, (cpu_target, rate_target) = f"{PLANS[plan]}, {state}", TARGETS[plan]
    yield from median_and_spread(f"{name}: CPU", [sum(one.values()) for one in spent], "ms", cpu_target)
    for kind in spent[0]:
        yield from median_and_spread(f"  of which {kind}", [one[kind] for one in spent], "ms")
    yield from median_and_spread("  beside it, the provider", provider, "ms")
    yield from median_and_spread(f"{name}: due to end of the last", per_second, "calls/s", rate_target)


def requests_alone(site: Site, tenants: list[Tenant]) -> Iterator[Result]:
    """Leads that are due at once, until the provider has taken the last call. It reports nothing."""
    requests.post(f"{site.provider_url}/control/plan/silent", timeout=10)
    entries = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, REQUESTS // len(tenants))]
    calls: Any = Call.objects.filter(purpose="lead", subject_id__in=[entry.lead_id for entry in entries])
    with site.meter_ours() as meter:
        began = time.time()
        leads_ground.put(entries)
        taken = calls.exclude(submitted_at=None)
        wait_until(lambda: taken.count() >= REQUESTS, LONGEST_S, lambda: provider_state(site), interval=0.25)
    took_s = taken.latest("submitted_at").submitted_at.timestamp() - began
    yield Result("requests alone: due to taken by the provider", REQUESTS / took_s, "calls/s")
    for kind, cpu in kinds_of(meter.spent).items():
        yield Result(f"  CPU of {kind}", 1000 * cpu / REQUESTS, "ms")


def counts(site: Site, tenants: list[Tenant], plan: str) -> Iterator[Result]:
    """What a call takes from the servers."""
    with counted() as numbers:
        _call(site, tenants, plan, COUNT)
    yield Result(f"commits for a {PLANS[plan]}", numbers.commits / COUNT, "commits")
    yield Result(f"PostgreSQL's log for a {PLANS[plan]}", numbers.wal_bytes / COUNT / 1024, "KiB")
    yield Result(f"Redis commands for a {PLANS[plan]}", numbers.redis_commands / COUNT, "commands")
    with statements() as found:
        _call(site, tenants, plan, COUNT)
    yield from statements_per_unit(found, COUNT, f"a {PLANS[plan]}")


def _call(site: Site, tenants: list[Tenant], plan: str, count: int) -> float:
    """Call new leads until their calls are over. Return the seconds from the first due to the last end."""
    requests.post(f"{site.provider_url}/control/plan/{plan}", timeout=10)
    entries = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, count // len(tenants))]
    calls: Any = Call.objects.filter(purpose="lead", subject_id__in=[entry.lead_id for entry in entries])
    began = time.time()
    leads_ground.put(entries)
    ended = calls.exclude(ended_at=None)
    wait_until(lambda: ended.count() >= len(entries), LONGEST_S, lambda: provider_state(site), interval=0.25)
    return float(ended.latest("ended_at").ended_at.timestamp() - began)
