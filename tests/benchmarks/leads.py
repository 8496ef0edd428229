"""Leads from their due time to the end of their call: schedule, promoter, gates, lines, rows, events, provider.

The processes are those that run in earnest (`manage.py dispatcher --only …`); the provider pretends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, connections

from dispatch.core import generation
from dispatch.core.supervisor import Spec, Supervisor
from dispatch.leads.models import Lead
from tests.benchmarks import Result, leads_ground, noop_provider
from tests.benchmarks.jobs_site import server_pids
from tests.benchmarks.processes import Meter
from tests.processes import environment
from tests.waiting import wait_until

LOOPS = "leads_promoter,leads_dialer"
COUNT = 40_000
LONGEST_S = 120.0


def run() -> Iterator[Result]:
    yield from throughput("noop-ends", 2, ">= 5000")
    yield from throughput("noop-20ms", 2, ">= 3000")


def throughput(provider: str, processes: int, target: str) -> Iterator[Result]:
    """All due at once, from the first promoted to the last finished."""
    tenants = leads_ground.tenants(provider)
    generation.ensure()
    with running(processes) as meter:
        warm = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, 500)]
        leads_ground.put(warm)
        wait_finished(len(warm), [tenant.campaign.pk for tenant in tenants])
        entries = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, COUNT // len(tenants))]
        leads_ground.analyze()
        with meter:
            began = time.time()
            leads_ground.put(entries)
            wait_finished(len(entries) + len(warm), [tenant.campaign.pk for tenant in tenants])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), extract(epoch FROM max(finished_at)) FROM leads_lead"
            " WHERE campaign_id = ANY(%s) AND outcome = 'answered'",
            [[tenant.campaign.pk for tenant in tenants]],
        )
        done, last = cursor.fetchone()
    assert done == len(entries) + len(warm), f"{done} of {len(entries) + len(warm)} were called"
    name = f"{provider}, {processes} processes: due to called and finished"
    yield Result(name, len(entries) / (float(last) - began), "leads/s", target)
    for who, spent in meter.spent.items():
        yield Result(f"  CPU of {who} for one lead", spent / len(entries) * 1e6, "µs")


def wait_finished(count: int, campaigns: list[int]) -> None:
    done = Lead.objects.filter(campaign_id__in=campaigns, status="finished")
    wait_until(lambda: done.count() >= count, LONGEST_S, lambda: f"{done.count()} of {count}", interval=0.25)


@contextmanager
def running(processes: int, **more: str) -> Iterator[Meter]:
    """So many dispatcher processes that only call leads; a meter of their CPU and the servers'."""
    names = [f"dialer {n}" for n in range(processes)]
    specs = [Spec(name, [sys.executable, "manage.py", "dispatcher", "--only", LOOPS]) for name in names]
    env = environment(
        connection.settings_dict["NAME"],
        PROVIDER_MODULES=json.dumps(noop_provider.MODULES),
        LOG_LEVEL="WARNING",
        LOG_FORMAT="console",
        **more,
    )
    connections.close_all()
    supervisor = Supervisor(specs, env, show=lambda name, line: "rror" in line or "warning" in line)
    with supervisor:
        wait_until(lambda: all(supervisor.pid_of(name) for name in names), 20, "the dialers did not start")
        pids = {name: supervisor.pid_of(name) or 0 for name in names}
        yield Meter({**pids, **server_pids()})
