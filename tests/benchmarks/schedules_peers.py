"""The same work by others: runs due at once, each of which does nothing but record that it was done.

Neither is a dependency of ours: `pip install APScheduler 'celery[redis]'` in an environment of your own, and name
its site-packages in BENCH_PEERS. Without it, nothing is measured here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db import connection

from dispatch.core.redis import client
from tests.benchmarks import Result
from tests.processes import database_url
from tests.waiting import wait_until

# Beat compares all its entries at every tick, so that it sends ever more slowly the more there are: it gets fewer.
COUNTS = {"apscheduler": 20_000, "celery": 2_000}
SCRIPT = Path(__file__).parent / "peers" / "at_once.py"


def measured() -> Iterator[Result]:
    """One row per peer that is there."""
    site = os.environ.get("BENCH_PEERS", "")
    if not site:
        print("BENCH_PEERS names no site-packages: APScheduler and Celery beat are not measured", flush=True)
        return
    for name in ("apscheduler", "celery"):
        yield Result(
            f"{COUNTS[name]:,} runs due at once, outcome recorded",
            _measure(name, site),
            "runs/s",
            peer=LABELS[name],
        )


LABELS = {
    "apscheduler": "APScheduler 3, Redis job store, 10 threads",
    "celery": "Celery beat and one prefork worker with 2 processes",
}


def _measure(name: str, site: str) -> float:
    """Runs the peer's processes until all are recorded."""
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bench_peer")
        cursor.execute("CREATE TABLE bench_peer (id bigint PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())")
    client().flushdb()
    env = {
        **os.environ,
        "PYTHONPATH": site,
        "BENCH_DATABASE": database_url(connection.settings_dict["NAME"]),
        "BENCH_REDIS": settings.REDIS_URL,
        "BENCH_COUNT": str(COUNTS[name]),
    }
    processes = [subprocess.Popen([sys.executable, str(SCRIPT), name, role], env=env) for role in ROLES[name]]
    try:
        wait_until(lambda: _recorded() == COUNTS[name], 300, lambda: f"only {_recorded()}", interval=0.25)
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM max(at) - min(at)) FROM bench_peer")
            return COUNTS[name] / float(cursor.fetchone()[0])
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=20)
        client().flushdb()


ROLES = {"apscheduler": ("scheduler",), "celery": ("worker", "beat")}


def _recorded() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM bench_peer")
        return int(cursor.fetchone()[0])
