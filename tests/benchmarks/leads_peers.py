"""The work of the suite `leads` by others: RQ's SimpleWorker, and Celery with threads, a job for each lead.

Dispatch doesn't depend on Celery: `pip install 'celery[redis]'` in a separate folder, named in BENCH_PEERS.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from django.db import connection

from dispatch.core.redis.client import client
from dispatch.core.runtime.supervisor import ProcessSpec
from tests.benchmarks import Result, leads_ground, leads_peer
from tests.benchmarks.leads_site import PROVIDERS, child_environment, supervised, wait_finished
from tests.benchmarks.table_statistics import analyze

COUNT = 1_500
PROCESSES = 2
PROGRAM = [sys.executable, "-m", "tests.benchmarks.leads_peer"]


def run() -> Iterator[Result]:
    for provider in PROVIDERS:
        yield from rq(provider)
    if not os.environ.get("BENCH_PEERS"):
        print("BENCH_PEERS names no site-packages: Celery is not measured", flush=True)
        return
    for provider in PROVIDERS:
        yield from celery(provider)


def rq(provider: str) -> Iterator[Result]:
    """Two SimpleWorkers."""
    from rq import Queue
    from rq.serializers import JSONSerializer

    tenant, ids = leads_of(provider)
    queue = Queue(leads_peer.QUEUE, connection=client(), serializer=JSONSerializer)
    queue.enqueue_many(
        [Queue.prepare_data("tests.benchmarks.leads_peer.call", args=(one,), result_ttl=0) for one in ids]
    )
    with supervised([ProcessSpec(f"rq {n}", [*PROGRAM, "rq"]) for n in range(PROCESSES)]):
        wait_finished(len(ids), [tenant])
    yield result(provider, tenant, len(ids), "RQ SimpleWorker")


def celery(provider: str) -> Iterator[Result]:
    """Two workers with eight threads each."""
    tenant, ids = leads_of(provider)
    subprocess.run([*PROGRAM, "celery-send", *map(str, ids)], env=child_environment(), check=True)
    specs = [ProcessSpec(f"celery {n}", [*PROGRAM, "celery", str(n)]) for n in range(PROCESSES)]
    with supervised(specs):
        wait_finished(len(ids), [tenant])
    yield result(provider, tenant, len(ids), f"Celery, {leads_peer.THREADS} threads each")


def leads_of(provider: str) -> tuple[int, Sequence[int]]:
    """A campaign, and its leads that are due."""
    (tenant,) = leads_ground.tenants(provider, 1)
    entries = leads_ground.add_leads(tenant, COUNT)
    analyze()
    return tenant.campaign.pk, [entry.lead_id for entry in entries]


def result(provider: str, campaign: int, count: int, peer: str) -> Result:
    """From the first claim to the last end."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM max(finished_at) - min(claimed_at)) FROM leads_lead WHERE campaign_id = %s",
            [campaign],
        )
        took = float(cursor.fetchone()[0])
    name = f"{PROVIDERS[provider]}, {PROCESSES} processes: due to called and finished"
    return Result(name, count / took, "leads/s", peer=peer)
