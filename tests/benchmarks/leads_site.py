"""The processes of the benchmarks of leads, those that run in earnest, and how their end is seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, connections

from dispatch.core.runtime.supervisor import ProcessSpec, Supervisor
from dispatch.leads.models import Lead
from tests.benchmarks import Result, noop_provider
from tests.benchmarks.jobs_site import DIALER_LOOPS, server_pids
from tests.benchmarks.processes import Meter, kinds_of
from tests.support.processes import environment
from tests.support.waiting import wait_until

LONGEST_S = 180.0
PROVIDERS = {"noop-ends": "no-op provider", "noop-20ms": "provider that takes 20 ms"}


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
    for kind, seconds in kinds_of(spent).items():
        yield Result(f"  CPU for one lead, {kind}", seconds / count * 1e6, "µs")


@contextmanager
def running(processes: int, loops: str = DIALER_LOOPS, **more: str) -> Iterator[Meter]:
    """Run `processes` dispatcher processes that only call leads; a meter of their CPU and the servers'."""
    names = [f"dialer {n}" for n in range(processes)]
    specs = [ProcessSpec(name, [sys.executable, "manage.py", "dispatcher", "--only", loops]) for name in names]
    with supervised(specs, **more) as supervisor:
        wait_until(lambda: all(supervisor.pid_of(name) for name in names), 20, "the dialers did not start")
        yield Meter({**{name: supervisor.pid_of(name) or 0 for name in names}, **server_pids()})


@contextmanager
def supervised(specs: list[ProcessSpec], **more: str) -> Iterator[Supervisor]:
    """These processes on the benchmark's database, up and ready."""
    env = child_environment(**more)
    connections.close_all()
    supervisor = Supervisor(specs, env, show=lambda name, line: "rror" in line or "warning" in line)
    with supervisor:
        supervisor.wait_ready()
        yield supervisor


def child_environment(**more: str) -> dict[str, str]:
    """What a process needs to work on the benchmark's database."""
    return environment(
        connection.settings_dict["NAME"],
        PROVIDER_MODULES=json.dumps(noop_provider.MODULES),
        LOG_LEVEL="WARNING",
        LOG_FORMAT="console",
        **more,
    )
