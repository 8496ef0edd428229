"""Leads from their due time to the end of their call: schedule, promoter, gates, lines, rows, events, provider.

The processes are those that run in earnest (`manage.py dispatcher --only …`, the web process for the intake); the
provider pretends, or is the simulator. Throughput counts from the moment the leads enter the schedule, all due,
to the end of the last."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from django.db import connection, connections

from dispatch.core import generation
from dispatch.core.redis import client
from dispatch.core.supervisor import Spec, Supervisor
from dispatch.leads import schedule
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.benchmarks import Result, jobs_site, leads_ground, leads_peer, noop_provider
from tests.benchmarks.jobs_site import DIALER_LOOPS, server_pids
from tests.benchmarks.measuring import percentile
from tests.benchmarks.processes import Meter
from tests.conftest import forget_redis
from tests.processes import environment
from tests.waiting import wait_until

COUNT, PEER_COUNT, SIMULATED = 40_000, 2_000, 1_500
FAR_S = 30 * 86_400.0
LAGGING, OVER_S = 500, 10.0
IDLE_S = 10.0
REQUESTS, LINES = 12, 10_000
LONGEST_S = 180.0
ALL_LOOPS = "redis_generation,leads_promoter,leads_dialer,leads_near,leads_sweep,leads_workers,leads_stale"


def run() -> Iterator[Result]:
    yield from throughput("noop-ends", 2, ">= 5000")
    yield from throughput("noop-ends", 4, "")
    yield from throughput("noop-20ms", 2, ">= 3000")
    yield from rq_peer("noop-ends")
    yield from rq_peer("noop-20ms")
    yield from simulated(2)
    yield from ingest()
    median, late = yield from lag(200_000, "<= 5", "<= 25")
    more, later = yield from lag(1_000_000, "", "")
    yield Result("due lag, median: 1,000,000 far ones against 200,000", more / median, "times", "<= 1.5")
    yield Result("due lag, 99th percentile: the same", later / late, "times", "<= 1.5")


def throughput(provider: str, processes: int, target: str) -> Iterator[Result]:
    """All due at once."""
    tenants = leads_ground.tenants(provider)
    campaigns = [tenant.campaign.pk for tenant in tenants]
    generation.ensure()
    with running(processes) as meter:
        warm = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, 500)]
        leads_ground.put(warm)
        wait_finished(len(warm), campaigns)
        entries = [entry for tenant in tenants for entry in leads_ground.add_leads(tenant, COUNT // len(tenants))]
        leads_ground.analyze()
        with meter:
            began = time.time()
            leads_ground.put(entries)
            wait_finished(len(entries) + len(warm), campaigns)
    last = last_finished(campaigns, len(entries) + len(warm))
    what = {"noop-ends": "no-op provider", "noop-20ms": "provider that takes 20 ms"}[provider]
    name = f"{what}, {processes} processes: due to called and finished"
    yield Result(name, len(entries) / (last - began), "leads/s", target)
    yield from cost(meter.spent, len(entries))


def rq_peer(provider: str) -> Iterator[Result]:
    """Two RQ SimpleWorkers on the same rows and gates, a job for each lead."""
    from rq import Queue
    from rq.serializers import JSONSerializer

    (tenant,) = leads_ground.tenants(provider, 1)
    entries = leads_ground.add_leads(tenant, PEER_COUNT)
    queue = Queue(leads_peer.QUEUE, connection=client(), serializer=JSONSerializer)
    jobs = [
        Queue.prepare_data("tests.benchmarks.leads_peer.call", args=(entry.lead_id,), result_ttl=0)
        for entry in entries
    ]
    queue.enqueue_many(jobs)
    specs = [Spec(f"rq {n}", [sys.executable, "-m", "tests.benchmarks.leads_peer"]) for n in range(2)]
    with supervised(specs):
        wait_finished(PEER_COUNT, [tenant.campaign.pk])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM max(finished_at) - min(claimed_at)) FROM leads_lead WHERE campaign_id = %s",
            [tenant.campaign.pk],
        )
        took = float(cursor.fetchone()[0])
    what = {"noop-ends": "no-op provider", "noop-20ms": "provider that takes 20 ms"}[provider]
    name = f"{what}, 2 processes: due to called and finished"
    yield Result(name, PEER_COUNT / took, "leads/s", peer="RQ SimpleWorker")


def simulated(dialers: int) -> Iterator[Result]:
    """Calls through the simulator: requests over HTTP, webhooks back through the web process."""
    tenants = leads_ground.tenants("twilio", 2)
    generation.ensure()
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
    generation.ensure()
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


def lag(far: int, median_target: str, late_target: str) -> Any:
    """From its due time to the provider being asked, for leads spread over ten seconds, while so many wait for
    later; what each of those takes in Redis, and what all of it costs while nothing is due."""
    (tenant,) = leads_ground.tenants("noop-ends", 1)
    forget_redis()
    generation.ensure()
    before = client().info("memory")["used_memory"]  # type: ignore[index]
    for start in range(0, far, 100_000):
        leads_ground.put(leads_ground.add_leads(tenant, min(100_000, far - start), due_in_s=FAR_S, step_s=0.1))
    used = client().info("memory")["used_memory"] - before  # type: ignore[index]
    leads_ground.analyze()
    yield Result(f"Redis for a scheduled lead, {far:,}", used / far, "bytes", "<= 120")
    with running(1, ALL_LOOPS) as meter:
        warm = leads_ground.add_leads(tenant, 50, due_in_s=0.5, step_s=0.02)
        leads_ground.put(warm)
        wait_until(lambda: finished([entry.lead_id for entry in warm]) == len(warm), LONGEST_S)
        # The whole backlog is compared once; from then on slowly.
        wait_until(lambda: schedule.swept_in() == generation.current(), LONGEST_S, interval=0.5)
        threading.Event().wait(2)
        with meter:
            threading.Event().wait(IDLE_S)
        idle = sum(spent for name, spent in meter.spent.items() if name.startswith("dialer")) / IDLE_S
        yield Result(f"CPU of an idle dispatcher, {far:,} scheduled", idle * 100, "% of a core", "< 2")
        entries = leads_ground.add_leads(tenant, LAGGING, due_in_s=2.0, step_s=OVER_S / LAGGING)
        leads_ground.put(entries)
        ids = [entry.lead_id for entry in entries]
        wait_until(lambda: finished(ids) == len(ids), LONGEST_S, interval=0.5)
    due = {entry.lead_id: entry.due_ms / 1000 for entry in entries}
    asked = Call.objects.filter(purpose="lead", subject_id__in=ids).values_list("subject_id", "sid")
    lags = sorted((noop_provider.asked_at(sid) - due[lead]) * 1000 for lead, sid in asked)
    median, late = percentile(lags, 0.5), percentile(lags, 0.99)
    yield Result(f"due lag, median, {far:,} far ones", median, "ms", median_target)
    yield Result(f"due lag, 99th percentile, {far:,} far ones", late, "ms", late_target)
    yield Result("  called early", sum(one < 0 for one in lags), "leads", "<= 0")
    return median, late


# --- What all of them need


def finished(ids: list[int]) -> int:
    return Lead.objects.filter(pk__in=ids, status="finished").count()


def wait_finished(count: int, campaigns: list[int]) -> None:
    done = Lead.objects.filter(campaign_id__in=campaigns, status="finished")
    wait_until(lambda: done.count() >= count, LONGEST_S, lambda: f"{done.count()} of {count}", interval=0.25)


def last_finished(campaigns: list[int], count: int) -> float:
    """When the last was finished (Unix seconds); all must have been called."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), extract(epoch FROM max(finished_at)) FROM leads_lead"
            " WHERE campaign_id = ANY(%s) AND outcome = 'answered'",
            [campaigns],
        )
        done, last = cursor.fetchone()
    assert done == count, f"{done} of {count} were called"
    return float(last)


def cost(spent: dict[str, float], count: int) -> Iterator[Result]:
    """CPU for one lead, by kind of process."""
    kinds: dict[str, float] = {}
    for name, seconds in spent.items():
        kind = name.rstrip(" 0123456789")
        kinds[kind] = kinds.get(kind, 0.0) + seconds
    for kind, seconds in kinds.items():
        yield Result(f"  CPU for one lead, {kind}", seconds / count * 1e6, "µs")


@contextmanager
def running(processes: int, loops: str = DIALER_LOOPS, **more: str) -> Iterator[Meter]:
    """So many dispatcher processes that only call leads; a meter of their CPU and the servers'."""
    names = [f"dialer {n}" for n in range(processes)]
    specs = [Spec(name, [sys.executable, "manage.py", "dispatcher", "--only", loops]) for name in names]
    with supervised(specs, **more) as supervisor:
        wait_until(lambda: all(supervisor.pid_of(name) for name in names), 20, "the dialers did not start")
        yield Meter({**{name: supervisor.pid_of(name) or 0 for name in names}, **server_pids()})


@contextmanager
def supervised(specs: list[Spec], **more: str) -> Iterator[Supervisor]:
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
        supervisor.wait_ready()
        yield supervisor
