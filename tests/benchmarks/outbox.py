"""The outbox end to end: a poller and a router in one process of their own, a local receiver in another.

Messages are loaded while their endpoint is paused; the clock runs from its resuming to the last call. The receiver
checks that every group came in order. Each figure is the median of three runs. Since what else the machine does
changes while the suite runs, what many targets and old messages cost is given by the mean of before they came and
after they went, and in CPU time. BENCH_TARGETS and BENCH_OLD set how many there are.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests
from django.db import connection

from dispatch.core.events import SYSTEM
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.services import target_health
from dispatch.outbox.services.intake import NewMessage, accept_messages, default_pool
from tests.benchmarks import Result
from tests.benchmarks.jobs_site import server_pids
from tests.benchmarks.measuring import median_and_spread
from tests.benchmarks.processes import Meter
from tests.support import factories as make
from tests.support.processes import environment, running
from tests.support.waiting import wait_until

MESSAGES, GROUPS = 10_000, 1_000
ALONE = 500
TARGETS = int(os.environ.get("BENCH_TARGETS", "100000"))
OLD = int(os.environ.get("BENCH_OLD", "1000000"))
CONCURRENCY = 300
RUNS = 3
LOOPS = "outbox_poller,outbox_router,outbox_leases,outbox_stale"

_TARGET_ROWS = """
INSERT INTO outbox_target (organization_id, origin, pool_id, failures, last_error, openings, is_deferral_reported)
SELECT %s, 'https://receiver-' || n || '.example', %s, 0, '', 0, false FROM generate_series(1, %s) n
"""
# One completed message of each of them.
_TARGET_MESSAGES = """
INSERT INTO outbox_message
    (organization_id, target_id, url, type, payload, group_id, sequence, mode, status, created_at, due_at,
     epoch, attempts, calls, lapses, in_flight, queued_at, started_at, ended_at, pool_id, last_error, waiting_for,
     resolution)
SELECT t.organization_id, t.id, t.origin, m.type, m.payload, m.group_id, 0, m.mode, 'COMPLETED',
       now() - interval '1 day', now() - interval '1 day', 1, 1, 1, 0, false, now() - interval '1 day',
       now() - interval '1 day', now() - interval '1 day', t.pool_id, '', '', ''
FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM outbox_message WHERE status = 'COMPLETED' LIMIT 1000) m
JOIN outbox_target t ON t.endpoint_id IS NULL AND mod(t.id, 1000) = m.n - 1
"""
_OLD_ROWS = """
INSERT INTO outbox_message
    (organization_id, endpoint_id, target_id, url, type, payload, group_id, sequence, mode, status, created_at,
    due_at,
     epoch, attempts, calls, lapses, in_flight, queued_at, started_at, ended_at, pool_id, last_error, waiting_for,
     resolution)
SELECT m.organization_id, m.endpoint_id, m.target_id, '', m.type, m.payload, m.group_id, 99, m.mode, 'COMPLETED',
       now() - interval '1 day', now() - interval '1 day', 1, 1, 1, 0, false, now() - interval '1 day',
       now() - interval '1 day', now() - interval '1 day', m.pool_id, '', '', ''
FROM (SELECT * FROM outbox_message WHERE status = 'COMPLETED' ORDER BY id LIMIT 1000) m,
     generate_series(1, %s)
"""


def run() -> Iterator[Result]:
    organization = make.organization("Bench")
    pool = default_pool(organization.pk)
    pool.concurrency = CONCURRENCY
    pool.save()
    with receiver() as url, running("dispatcher", "--only", LOOPS, env=_environment()) as dispatcher:
        endpoint = Endpoint.objects.create(
            organization=organization, name="Bench", url=url, secret=signing.new_secret(), pool=pool
        )
        accept_messages(
            organization.pk, [NewMessage(type="t", payload='{"n":0}', endpoint=endpoint, group="warm")]
        )
        wait_until(lambda: _seen(url)["count"] == 1, 30, dispatcher.log)
        pids = {"dispatcher": dispatcher.pid, **server_pids()}
        before = _many(endpoint, url, pids)
        gap, gap_p99 = _alone(endpoint, url)
        what = "10,000 messages over 1,000 groups, end to end"
        yield from median_and_spread(what, before.rates, "messages/s", ">= 3000")
        yield from before.costs()
        yield Result("… messages out of order", before.disorder, "messages", "<= 0")
        yield from median_and_spread("one group alone, median gap between its messages", gap, "ms", "<= 4")
        yield from median_and_spread("… 99th percentile", gap_p99, "ms")
        _change_rows(_TARGET_ROWS, [organization.pk, pool.pk, TARGETS])
        _change_rows(_TARGET_MESSAGES)
        beside_targets = _many(endpoint, url, pids)
        targets_gap, _ = _alone(endpoint, url)
        _change_rows(_OLD_ROWS, [OLD // 1000])
        assert Message.objects.count() > OLD
        beside = _many(endpoint, url, pids)
        beside_gap, _ = _alone(endpoint, url)
        _change_rows(
            "DELETE FROM outbox_message WHERE ended_at < now() - interval '12 hours'", vacuum="FULL, ANALYZE"
        )
        _change_rows("DELETE FROM outbox_target WHERE endpoint_id IS NULL", vacuum="FULL, ANALYZE")
        after = _many(endpoint, url, pids)
        alone = (before.rate + after.rate) / 2
        yield from median_and_spread(f"the same with {TARGETS:,} targets", beside_targets.rates, "messages/s")
        yield from beside_targets.costs()
        yield Result("… how many times slower", alone / beside_targets.rate, "times", "<= 1.2")
        yield from median_and_spread("… one group alone, median gap", targets_gap, "ms", "<= 4")
        yield from median_and_spread(
            f"the same with {OLD:,} completed messages as well", beside.rates, "messages/s"
        )
        yield from beside.costs()
        yield Result("… how many times slower", alone / beside.rate, "times", "<= 1.2")
        yield from median_and_spread("… one group alone, median gap", beside_gap, "ms", "<= 4")
        yield from median_and_spread("… once they are deleted", after.rates, "messages/s")
        yield from after.costs()


def _change_rows(sql: str, params: list[int] | None = None, vacuum: str = "ANALYZE") -> None:
    """Insert or delete rows without checking foreign keys, and leave no work of that to the next measurement."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(sql, params)
        cursor.execute("RESET session_replication_role")
        cursor.execute(f"VACUUM ({vacuum}) outbox_message, outbox_target")
        cursor.execute("CHECKPOINT")


@dataclass(frozen=True)
class Speed:
    """Messages a second of each run, how many came out of order in all, and µs of CPU for each, by process."""

    rates: list[float]
    disorder: int
    cpu_us: dict[str, list[float]]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def costs(self) -> Iterator[Result]:
        for name, spent in self.cpu_us.items():
            yield from median_and_spread(f"… CPU for each message, {name}", spent, "us")


def _many(endpoint: Endpoint, url: str, pids: dict[str, int]) -> Speed:
    runs = [_many_once(endpoint, url, pids) for _ in range(RUNS)]
    return Speed(
        [rate for run in runs for rate in run.rates],
        sum(run.disorder for run in runs),
        {name: [one for run in runs for one in run.cpu_us[name]] for name in pids},
    )


def _alone(endpoint: Endpoint, url: str) -> tuple[list[float], list[float]]:
    """The medians and the 99th percentiles of the time between two messages of one group, in milliseconds."""
    runs = [_alone_once(endpoint, url) for _ in range(RUNS)]
    return [median for median, _ in runs], [late for _, late in runs]


def _many_once(endpoint: Endpoint, url: str, pids: dict[str, int]) -> Speed:
    target_health.pause_endpoint(endpoint.pk, "loading", actor=SYSTEM)
    for n in range(MESSAGES // GROUPS):
        accept_messages(
            endpoint.organization_id,
            [
                NewMessage(type="order.changed", payload=f'{{"n":{n}}}', endpoint=endpoint, group=f"order:{group}")
                for group in range(GROUPS)
            ],
        )
    requests.get(url + "new", timeout=5)
    began = time.time()
    with Meter(pids) as meter:
        target_health.resume_endpoint(endpoint.pk, actor=SYSTEM)
        wait_until(lambda: _seen(url)["count"] >= MESSAGES, 180, lambda: str(_seen(url)), interval=0.05)
    told = _seen(url)
    _quiet()
    cpu_us = {name: [spent / MESSAGES * 1e6] for name, spent in meter.spent.items()}
    return Speed([MESSAGES / (told["last"] - began)], told["disorder"], cpu_us)


def _alone_once(endpoint: Endpoint, url: str) -> tuple[float, float]:
    requests.get(url + "new", timeout=5)
    items = [NewMessage(type="t", payload=f'{{"n":{n}}}', endpoint=endpoint, group="alone") for n in range(ALONE)]
    accept_messages(endpoint.organization_id, items)
    wait_until(lambda: _seen(url)["count"] >= ALONE, 60, lambda: str(_seen(url)), interval=0.1)
    _quiet()
    told = _seen(url)
    return told["gap_p50_ms"], told["gap_p99_ms"]


def _quiet() -> None:
    wait_until(lambda: not Message.objects.filter(status__in=["PENDING", "QUEUED", "PROCESSING"]).exists(), 30)


def _seen(url: str) -> dict[str, Any]:
    return requests.get(url, timeout=5).json()


def _environment() -> dict[str, str]:
    return environment(connection.settings_dict["NAME"], LOG_LEVEL="WARNING")


@contextmanager
def receiver() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.receiver"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
    finally:
        process.kill()
        process.wait()
