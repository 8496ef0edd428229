"""Leads from their due time to the end of their call: schedule, promoter, gates, lines, rows, events, provider.

The processes are those that run in earnest (`manage.py dispatcher --only …`, the web process for the intake); the
provider pretends, or is the simulator. Throughput counts from the moment the leads enter the schedule, all due,
to the end of the last.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import requests

from dispatch.core.redis import generation
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.benchmarks import Result, jobs_site, leads_ground
from tests.benchmarks.leads_site import LONGEST_S, PROVIDERS, cost, last_finished, running, wait_finished
from tests.benchmarks.measuring import median_and_spread
from tests.benchmarks.processes import kinds_of
from tests.benchmarks.table_statistics import (
    ANALYZED,
    UNANALYZED,
    analyze,
    switch_autovacuum_off,
    switch_autovacuum_on,
)
from tests.support.waiting import wait_until

COUNT, SIMULATED = 40_000, 1_500
REQUESTS, LINES, RUNS = 12, 10_000, 3


def run() -> Iterator[Result]:
    switch_autovacuum_off()
    list(throughput("noop-ends", 2, "", UNANALYZED, runs=1))  # a new database is slower at first: not counted
    yield from throughput("noop-ends", 2, ">= 9000", UNANALYZED)
    switch_autovacuum_on()
    yield from throughput("noop-ends", 2, ">= 9000")
    yield from throughput("noop-ends", 4, "", runs=1)
    yield from throughput("noop-20ms", 2, ">= 7000")
    yield from simulated(2)
    yield from ingest()


def throughput(
    provider: str, processes: int, target: str, state: str = ANALYZED, runs: int = RUNS
) -> Iterator[Result]:
    """All due at once: the medians of several runs, with their spread."""
    found = [_throughput(provider, processes, state) for _ in range(runs)]
    name = f"{PROVIDERS[provider]}, {processes} processes, {state}: due to called and finished"
    yield from median_and_spread(name, [rate for rate, _ in found], "leads/s", target)
    for kind in found[0][1]:
        yield from median_and_spread(f"  CPU for one lead, {kind}", [cpu[kind] for _, cpu in found], "µs")


def _throughput(provider: str, processes: int, state: str) -> tuple[float, dict[str, float]]:
    """Return the leads a second, and the CPU for one in µs by kind of process."""
    tenants = leads_ground.tenants(provider)
    campaigns = [tenant.campaign.pk for tenant in tenants]
    generation.ensure_generation()
    with running(processes) as meter:
        warm = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, 500)]
        leads_ground.put(warm)
        wait_finished(len(warm), campaigns)
        entries = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, COUNT // len(tenants))]
        if state == ANALYZED:
            analyze()
        with meter:
            began = time.time()
            leads_ground.put(entries)
            wait_finished(len(entries) + len(warm), campaigns)
    last = last_finished(campaigns, len(entries) + len(warm))
    cpu = {kind: 1e6 * seconds / len(entries) for kind, seconds in kinds_of(meter.spent).items()}
    return len(entries) / (last - began), cpu


def simulated(dialers: int) -> Iterator[Result]:
    """Calls through the simulator: requests over HTTP, webhooks back through the web process."""
    tenants = leads_ground.tenants("twilio", 2)
    generation.ensure_generation()
    with jobs_site.running(dispatcher=False, simulator=True, dialers=dialers) as site:
        entries = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, SIMULATED // 2)]
        with site.meter() as meter:
            began = time.time()
            leads_ground.put(entries)
            placed = Call.objects.filter(
                purpose="lead", account__organization__in=[t.organization_id for t in tenants]
            )
            wait_until(lambda: placed.exclude(submitted_at=None).count() >= len(entries), LONGEST_S, interval=0.25)
    last = placed.latest("submitted_at").submitted_at
    assert last is not None
    name = f"simulator over HTTP, {dialers} processes: due to taken by the provider"
    yield Result(name, len(entries) / (last.timestamp() - began), "leads/s")
    yield from cost(meter.spent, len(entries))


def ingest() -> Iterator[Result]:
    """Bulk requests of 10,000 lines, two at a time, to one web process."""
    (tenant,) = leads_ground.tenants("noop-ends", 1)
    generation.ensure_generation()
    due = "2031-01-01T00:00:00Z"
    bodies = [
        json.dumps(
            {
                "campaign": tenant.campaign.code,
                "leads": [
                    {"phone": leads_ground.phone(), "due_at": due, "external_id": f"{n}-{line}"}
                    for line in range(LINES)
                ],
            }
        )
        for n in range(REQUESTS)
    ]
    headers = {"Authorization": f"Bearer {tenant.api_key}", "Content-Type": "application/json"}
    with jobs_site.running(dispatcher=False) as site:
        url = f"{site.base_url}/api/v1/leads/bulk/"
        post(url, bodies.pop(), headers)
        began = time.perf_counter()
        halves = [bodies[0::2], bodies[1::2]]
        clients = [
            threading.Thread(target=lambda half=half: [post(url, body, headers) for body in half])  # type: ignore[misc]
            for half in halves
        ]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        took = time.perf_counter() - began
    assert Lead.objects.filter(campaign=tenant.campaign).count() == REQUESTS * LINES
    yield Result("bulk intake through the API, one web process", len(bodies) * LINES / took, "leads/s", ">= 15000")


def post(url: str, body: str, headers: dict[str, str]) -> None:
    answer = requests.post(url, data=body, headers=headers, timeout=120)
    assert answer.status_code == 201, answer.text[:500]
