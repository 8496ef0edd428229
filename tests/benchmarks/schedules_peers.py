"""The same work by others: 100,000 runs due at once, each of which does nothing but record that it was done.

Dispatch depends on neither: `pip install --target DIR APScheduler 'celery[redis]'`, and name DIR in
BENCH_PEERS. Without it, nothing is measured here. A peer that is not done in PATIENCE_S is stopped, and what it
did until then is its figure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.db import connection

from dispatch.core.redis.client import client
from tests.benchmarks import Result
from tests.support.processes import database_url
from tests.support.waiting import wait_until

# Beat compares all its entries at every tick: the more there are, the more slowly it sends. So it is tried with
# few too.
TRIED = (("apscheduler", 100_000), ("celery", 100_000), ("celery", 2_000))
PATIENCE_S = 90.0
SCRIPT = Path(__file__).parent / "peers" / "at_once.py"


def run() -> Iterator[Result]:
    """One row per peer that is there."""
    site = os.environ.get("BENCH_PEERS", "")
    if not site:
        print("BENCH_PEERS names no site-packages: APScheduler and Celery beat are not measured", flush=True)
        return
    for name, count in TRIED:
        recorded, seconds = _measure(name, count, site)
        yield Result(
            f"{count:,} runs due at once, {recorded:,} recorded in {seconds:.0f} s",
            recorded / seconds,
            "runs/s",
            peer=LABELS[name],
        )


LABELS = {
    "apscheduler": "APScheduler 3, Redis job store, 10 threads",
    "celery": "Celery beat and one prefork worker with 2 processes",
}


def _measure(name: str, count: int, site: str) -> tuple[int, float]:
    """Run the peer's processes until all jobs are recorded, or until PATIENCE_S after the first.

    Returns how many were recorded, and in how many seconds.
    """
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bench_peer")
        cursor.execute("CREATE TABLE bench_peer (id bigint PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())")
    client().flushdb()
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "PYTHONPATH": site,
            "BENCH_DATABASE": database_url(connection.settings_dict["NAME"]),
            "BENCH_REDIS": settings.REDIS_URL,
            "BENCH_COUNT": str(count),
            "BENCH_BEAT_FILE": str(Path(folder) / "beat"),
        }
        command = [sys.executable, str(SCRIPT), name]
        with (Path(folder) / "log").open("wb") as log:
            processes = [
                subprocess.Popen([*command, role], env=env, stdout=log, stderr=log, start_new_session=True)
                for role in ROLES[name]
            ]
            try:
                said = lambda: (Path(folder) / "log").read_text(errors="replace")[-2000:]  # noqa: E731
                wait_until(lambda: _recorded()[0], 180, said, interval=0.1)
                with suppress(AssertionError):  # so far it has come
                    wait_until(lambda: _recorded()[0] == count, PATIENCE_S, interval=0.25)
                return _recorded()
            finally:
                for process in processes:
                    os.killpg(process.pid, signal.SIGKILL)  # its children too
                    process.wait(timeout=20)
                client().flushdb()


ROLES = {"apscheduler": ("scheduler",), "celery": ("worker", "beat")}


def _recorded() -> tuple[int, float]:
    """How many, and the seconds from the first to the last of them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(extract(epoch FROM max(at) - min(at)), 0)::float FROM bench_peer"
        )
        count, seconds = cursor.fetchone()
    return count, seconds
