"""The work of `jobs_whole` and `leads_whole` done plainly, by Celery, Dramatiq and BullMQ, with the same provider.

Rows by an ORM, webhooks by Django or Express, a task for each job or lead (`peers/plain_site.py` and
`plain_site.mjs`). They give none of our guarantees. BENCH_PEERS names a folder with the Python packages
(`pip install --target DIR 'celery[redis]' 'dramatiq[redis]' gunicorn`), BENCH_NODE_PEERS one with those of Node.js
(`npm install --prefix DIR bullmq ioredis express sequelize pg`); what is not named is left out.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from django.db import connection, connections

from dispatch.core.runtime.supervisor import ProcessSpec, Supervisor
from tests.benchmarks import Result, jobs_load
from tests.benchmarks.jobs_ground import EAST, NORTH, SERVICE, SOUTH, WEST, Tenant
from tests.benchmarks.jobs_site import PROVIDER, Site
from tests.benchmarks.jobs_whole import OVER_S, RATE, RUNS, provider_state
from tests.benchmarks.leads_whole import COUNT, PLANS
from tests.benchmarks.measuring import median_and_spread
from tests.benchmarks.processes import kinds_of
from tests.benchmarks.whole_provider import TOKEN
from tests.support.processes import environment, free_port
from tests.support.waiting import wait_until

HERE = Path(__file__).parent / "peers"
LONGEST_S = 120.0
TECHNICIANS = 500
ORGANIZATIONS = 20
WEB_SERVER = [
    "gunicorn",
    "plain_site:wsgi()",
    "--workers=1",
    "--threads=8",
    "--keep-alive=75",
    "--log-level=error",
]
PYTHON_WORKERS = {
    "celery": (["celery", "--app", "plain_site:app", "worker", "--concurrency", "2", "--loglevel", "ERROR"],
               "Celery, Django, 2 processes"),
    "dramatiq": (["dramatiq", "plain_site", "--processes", "2", "--threads", "8"],
                 "Dramatiq, Django, 2 processes of 8 threads"),
}  # fmt: skip


def run() -> Iterator[Result]:
    with connection.cursor() as cursor:
        cursor.execute((HERE / "plain_schema.sql").read_text())
    tenants = [_tenant(random.Random(n)) for n in range(ORGANIZATIONS)]
    for peer, site in _peers():
        yield from _leads(peer, site)
        yield from _jobs(peer, site, tenants)


def _peers() -> Iterator[tuple[str, Site]]:
    python, node = os.environ.get("BENCH_PEERS"), os.environ.get("BENCH_NODE_PEERS")
    for queue, (worker, name) in PYTHON_WORKERS.items() if python else ():
        program = ["env", f"PYTHONPATH={python}:{HERE}", f"BENCH_QUEUE={queue}", sys.executable, "-m"]
        with _running([*program, *WEB_SERVER], [*program, *worker]) as site:
            yield name, site
    if node and (found := shutil.which("node")):
        program = [found, str(HERE / "plain_site.mjs")]
        with _running([*program, "web"], [*program, "worker"]) as site:
            yield "BullMQ, Express, Sequelize", site
    if not (python and node):
        print("BENCH_PEERS or BENCH_NODE_PEERS is not set: some peers are left out", flush=True)


@contextmanager
def _running(web: list[str], worker: list[str]) -> Iterator[Site]:
    """Run the provider, a web process, whose address is its last argument, and a worker."""
    port, provider_port = free_port(), free_port()
    base_url, provider_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{provider_port}"
    provider = [sys.executable, "-m", "tests.benchmarks.whole_provider", str(provider_port)]
    specs = [
        ProcessSpec(PROVIDER, provider, ready_url=f"{provider_url}/control/state", stop_stage=2),
        ProcessSpec("web", [*web, f"--bind=127.0.0.1:{port}"], ready_url=f"{base_url}/readyz"),
        ProcessSpec("worker", worker),
    ]
    env = environment(
        connection.settings_dict["NAME"], PUBLIC_BASE_URL=base_url, SIMULATOR_URL=provider_url, BENCH_TOKEN=TOKEN
    )
    connections.close_all()
    with Supervisor(specs, env, show=lambda name, line: "rror" in line) as supervisor:
        supervisor.wait_ready()
        yield Site(base_url, supervisor, tuple(spec.name for spec in specs), provider_url)


def _leads(peer: str, site: Site) -> Iterator[Result]:
    for plan, name in PLANS.items():
        _call_leads(site, plan, 40)  # every process has done its work before it is measured
        spent, per_second = [], []
        for _ in range(RUNS):
            with site.meter_ours() as meter:
                took_s = _call_leads(site, plan, COUNT)
            spent.append({kind: 1000 * cpu / COUNT for kind, cpu in kinds_of(meter.spent).items()})
            per_second.append(COUNT / took_s)
        yield from _cost(f"{name}: CPU", spent, peer)
        yield from _named(peer, median_and_spread(f"{name}: due to end of the last", per_second, "calls/s"))


def _call_leads(site: Site, plan: str, count: int) -> float:
    """Call new leads until all are finished. Return the seconds that it took."""
    requests.post(f"{site.provider_url}/control/plan/{plan}", timeout=10)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO bench_lead (phone, due_at)"
            " SELECT '+1602' || (3000000 + n), now() FROM generate_series(1, %s) n RETURNING id",
            [count],
        )
        ids = [row[0] for row in cursor.fetchall()]
    began = time.time()
    requests.post(f"{site.base_url}/leads", json=ids, timeout=30).raise_for_status()
    query = "SELECT count(*), max(finished_at) FROM bench_lead WHERE id = ANY(%s) AND status = 'finished'"
    _wait(site, query, ids)
    with connection.cursor() as cursor:
        cursor.execute(query, [ids])
        return float(cursor.fetchone()[1].timestamp() - began)


def _jobs(peer: str, site: Site, tenants: list[Tenant]) -> Iterator[Result]:
    requests.post(f"{site.provider_url}/control/plan/accept", timeout=10)
    _live(site, tenants, 3.0)
    spent = []
    for _ in range(RUNS):
        with site.meter_ours() as meter:
            count = _live(site, tenants, OVER_S)
        spent.append({kind: 1000 * cpu / count for kind, cpu in kinds_of(meter.spent).items()})
    yield from _cost(f"{RATE}/s: CPU for a whole job", spent, peer)


def _live(site: Site, tenants: list[Tenant], seconds: float) -> int:
    """Submit forms and wait until each job is assigned and its call over. Return their number."""
    load = jobs_load.steadily(site.base_url, tenants, per_second=RATE, seconds=seconds)
    assert not load.failures, load.refused
    query = (
        "SELECT count(*) FROM bench_job j JOIN bench_call c ON c.job_id = j.id"
        " WHERE j.id = ANY(%s) AND j.status = 'assigned' AND c.ended_at IS NOT NULL"
    )
    _wait(site, query, list(load.sent))
    return len(load.sent)


def _wait(site: Site, query: str, ids: list[int]) -> None:
    def is_done() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(query, [ids])
            return bool(cursor.fetchone()[0] == len(ids))

    wait_until(is_done, LONGEST_S, lambda: provider_state(site), interval=0.25)


def _cost(name: str, spent: list[dict[str, float]], peer: str) -> Iterator[Result]:
    yield from _named(peer, median_and_spread(name, [sum(one.values()) for one in spent], "ms"))
    for kind in spent[0]:
        yield from _named(peer, median_and_spread(f"  of which {kind}", [one[kind] for one in spent], "ms"))


def _named(peer: str, results: Iterator[Result]) -> Iterator[Result]:
    for result in results:
        yield Result(result.name, result.value, result.unit, result.target, peer)


def _tenant(chance: random.Random) -> Tenant:
    """Create an organization's key, and its technicians all over the metropolis."""
    api_key = f"key-{chance.random()}"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO bench_key (digest) VALUES (%s) RETURNING id",
            [hashlib.sha256(api_key.encode()).hexdigest()],
        )
        organization_id = cursor.fetchone()[0]
        cursor.execute(
            "INSERT INTO bench_technician (organization_id, name, phone, skill, lat, lng)"
            " SELECT %s, 'Technician ' || n, '+1602' || (4000000 + n),"
            " CASE WHEN n %% 4 = 3 THEN 'none' ELSE %s END,"
            " %s + random() * %s, %s + random() * %s FROM generate_series(1, %s) n",
            [organization_id, SERVICE, SOUTH, NORTH - SOUTH, WEST, EAST - WEST, TECHNICIANS],
        )
    return Tenant(organization_id, api_key)
