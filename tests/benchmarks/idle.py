"""What an installation costs while nothing happens: CPU, SQL statements, Redis commands and wake-ups by process.

`BENCH_IDLE_DETAIL=1` also prints each statement and each Redis command with its rate.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psutil
from django.db import connection

from dispatch.core.redis.client import client
from tests.benchmarks import Result, jobs_ground
from tests.benchmarks.jobs_site import OURS, Site, running
from tests.benchmarks.measuring import median_and_spread
from tests.benchmarks.processes import cpu_s, kinds_of
from tests.benchmarks.whole_counts import statements

SETTLE_S, IDLE_S, COUNTED_S = 15.0, 30.0, 20.0
RUNS = 3
DETAIL = bool(os.environ.get("BENCH_IDLE_DETAIL"))


def run() -> Iterator[Result]:
    jobs_ground.tenants()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")  # otherwise, autovacuum does this while the idle processes are measured
    with running(workers=OURS, dispatcher=True) as site:
        time.sleep(SETTLE_S)  # what begins with the processes, such as the deletion of old rows, is over
        if command := os.environ.get("BENCH_IDLE_COMMAND"):  # for a profiler; {dispatcher} is a process id
            subprocess.Popen(shlex.split(command.format(**pids(site))))
        yield from cpu(site)
        yield from counts()


def cpu(site: Site) -> Iterator[Result]:
    """CPU time and voluntary context switches of every kind of process, the medians of several spans."""
    spans = [_span(site) for _ in range(RUNS)]
    shares = [{kind: 100 * seconds / IDLE_S for kind, seconds in span.cpu_s.items()} for span in spans]
    total = [sum(kinds.values()) for kinds in shares]
    yield from median_and_spread("idle, all processes", total, "% of a core", "<= 3")
    for kind in shares[0]:
        yield from median_and_spread(f"  of which {kind}", [one[kind] for one in shares], "% of a core")
    sessions = [100 * span.sessions_s / IDLE_S for span in spans]
    yield from median_and_spread("  of which PostgreSQL's sessions", sessions, "% of a core")
    woken = [{kind: count / IDLE_S for kind, count in span.woken.items()} for span in spans]
    yield from median_and_spread("wake-ups", [sum(one.values()) for one in woken], "a second")
    for kind in woken[0]:
        yield from median_and_spread(f"  of which {kind}", [one[kind] for one in woken], "a second")


class _Span(NamedTuple):
    """What idle processes took, by kind; PostgreSQL's sessions are part of its CPU time."""

    cpu_s: dict[str, float]
    sessions_s: float
    woken: dict[str, float]


def _span(site: Site) -> _Span:
    before, began, sessions = switches(site), pids(site), session_cpu_s()
    with site.meter_ours() as meter:
        time.sleep(IDLE_S)
    in_sessions = sum(seconds - sessions.get(pid, 0.0) for pid, seconds in session_cpu_s().items())
    assert pids(site) == began, "a process ended"
    woken = kinds_of(
        {
            name: float(sum(count - before[name].get(thread, 0) for thread, count in after.items()))
            for name, after in switches(site).items()
        }
    )
    return _Span(kinds_of(meter.spent), in_sessions, woken)


def session_cpu_s() -> dict[int, float]:
    """Return the CPU time of PostgreSQL's open sessions by process: the rest is its background processes'."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return {pid: cpu_s(pid) for (pid,) in cursor.fetchall()}


def counts() -> Iterator[Result]:
    """SQL statements and Redis commands a second."""
    with statements() as found:
        commands = redis_commands(COUNTED_S)
    kinds: Counter[str] = Counter()
    for (who, _), times in found.items():
        if not who.startswith("dispatch-") and who not in ("", "dispatch"):
            kinds[who.rstrip(" 0123456789")] += times
    yield Result("SQL statements", kinds.total() / COUNTED_S, "a second")
    for kind, times in kinds.most_common():
        yield Result(f"  of which {kind}", times / COUNTED_S, "a second")
    yield Result("Redis commands", commands.total() / COUNTED_S, "a second")
    if DETAIL:
        show({f"{who:<12} {sql[:160]}": times for (who, sql), times in found.items()})
        show(commands)


def redis_commands(seconds: float) -> Counter[str]:
    """Count the commands that Redis carries out, by their first words. Commands of scripts are not counted."""
    found: Counter[str] = Counter()
    stop = threading.Event()

    def listen() -> None:
        with client().monitor() as monitor:
            for command in monitor.listen():
                if stop.is_set():
                    return
                if command["client_type"] != "lua":
                    found[" ".join(re.sub(r"[0-9a-f-]{8,}|\d+", "#", command["command"]).split()[:3])[:80]] += 1

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    time.sleep(seconds)
    stop.set()
    client().ping()
    thread.join(5)
    return found


def switches(site: Site) -> dict[str, dict[int, int]]:
    """Return the voluntary context switches of each thread of each process of the site, with its descendants."""
    found: dict[str, dict[int, int]] = {}
    for name, pid in pids(site).items():
        process = psutil.Process(pid)
        found[name] = {}
        for one in (process, *process.children(recursive=True)):
            found[name] |= _switches(one)
    return found


def pids(site: Site) -> dict[str, int]:
    """Return the first process of each name."""
    return {name: site.pid_of(name) for name in site.names}


def _switches(process: Any) -> dict[int, int]:
    """Return the switches by thread: Linux counts each separately. Threads that have ended are missing."""
    found = {}
    with suppress(OSError, psutil.NoSuchProcess):
        for thread in process.threads():
            with suppress(OSError), open(f"/proc/{process.pid}/task/{thread.id}/status") as lines:
                found[thread.id] = next(
                    int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt")
                )
    return found


def show(rates: Mapping[str, int]) -> None:
    """Print what happened at which rate, the most frequent first."""
    for what, times in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"{times / COUNTED_S:8.2f}/s {what}", file=sys.stderr)
