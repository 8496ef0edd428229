"""Measure the scheduler: runs that are all due at once, lateness among many other runs, cost of its query.

BENCH_STORED sets how many other runs there are, one million by default.

The processes are those of `make up`: a dispatcher with the executor, a worker of the kind, a status worker. The
work itself is a no-op; the overhead is measured, from the trigger time to the recorded outcome.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, connections, transaction

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.db.prepared import fetch_all, fetch_by_index
from dispatch.core.events import SYSTEM
from dispatch.core.redis.client import client
from dispatch.core.runtime.queues import rq_queue
from dispatch.core.runtime.supervisor import ProcessSpec, Supervisor
from dispatch.schedules import kinds, sql
from dispatch.schedules.models import SHARDS
from dispatch.schedules.services import schedules
from dispatch.schedules.services.executor import find_due_ids
from tests.benchmarks import Result
from tests.benchmarks.measuring import median_and_spread, percentile
from tests.benchmarks.noop_kind import KIND, MODULE, NAME
from tests.support import factories
from tests.support.processes import environment
from tests.support.waiting import wait_until

AT_ONCE = 100_000
STORED = int(os.environ.get("BENCH_STORED", "1000000"))
PUNCTUAL, OVER_S = 500, 10.0
RUNS = 3
QUEUE = f"dispatch-{NAME}-queue"


def run() -> Iterator[Result]:
    kinds.register(KIND)
    settings.SCHEDULE_KIND_QUEUES[NAME] = QUEUE
    settings.RQ_QUEUES.setdefault(QUEUE, dict(settings.RQ_QUEUES[settings.SCHEDULE_STATUS_QUEUE]))
    settings.LIMIT_SCHEDULES = max(settings.LIMIT_SCHEDULES, 2 * STORED)
    organization = factories.organization("Copper State HVAC")
    _store(organization, 10_000)
    before = _question_ms()
    yield from _all_at_once(organization, 10_000)
    _store(organization, STORED - 10_000)
    after = _question_ms()
    yield Result("executor's question, 100 due, 10,000 runs stored", before, "ms")
    yield Result(f"executor's question, 100 due, {STORED:,} runs stored", after, "ms")
    yield Result("the same, as a multiple", after / before, "times", "<= 1.5")
    yield from _all_at_once(organization, STORED)
    yield from _punctual(organization)


def _all_at_once(organization: Organization, among: int) -> Iterator[Result]:
    rates = [_all_at_once_rate(organization, f"at once among {among}, {run}") for run in range(RUNS)]
    name = f"{AT_ONCE:,} runs due at once among {among:,}, recorded"
    yield from median_and_spread(name, rates, "runs/s", ">= 5000")


def _all_at_once_rate(organization: Organization, name: str) -> float:
    first, last = _store(organization, AT_ONCE, name=name)
    with _site():
        due = _bring_forward(first, last, timedelta(seconds=60))
        wait_until(lambda: not _has_open(first, last), 600, lambda: f"{_left(first, last)} are left", interval=0.1)
    count, ended = _fetch_one(
        "SELECT count(*), max(ended_at) FROM schedules_run "
        "WHERE schedule_id BETWEEN %s AND %s AND status = 'succeeded'",
        first, last,
    )  # fmt: skip
    assert count == AT_ONCE, f"{count} of {AT_ONCE} succeeded"
    return AT_ONCE / float((ended - due).total_seconds())


def _punctual(organization: Organization) -> Iterator[Result]:
    """Due one by one, at random moments of ten seconds."""
    found = [_punctual_lags(organization, random.Random(7 + run)) for run in range(RUNS)]
    among = f"{PUNCTUAL} runs over {OVER_S:.0f} s among {STORED:,}"
    for title, share, target in (("median", 0.5, "<= 50"), ("99th percentile", 0.99, "<= 250")):
        values = [percentile(lags, share) for lags in found]
        yield from median_and_spread(f"trigger to worker, {title}, {among}", values, "ms", target)


def _punctual_lags(organization: Organization, chance: random.Random) -> list[float]:
    with _site():
        start = clock.now() + timedelta(seconds=20)  # the runs must not start before they have their moments
        moments = [start + timedelta(seconds=chance.uniform(0, OVER_S)) for _ in range(PUNCTUAL)]
        first = _last_id() + 1
        schedules.create_schedules(
            organization.pk,
            [_values(trigger_at=moment.replace(microsecond=0), name="punctual") for moment in moments],
            actor=SYSTEM,
        )
        last = _last_id()
        with connection.cursor() as cursor:  # to the microsecond, which the API does not offer
            cursor.execute(
                "UPDATE schedules_run r SET trigger_at = m.at, due_at = m.at "
                "FROM unnest(%s::timestamptz[]) WITH ORDINALITY AS m(at, n) "
                "WHERE r.schedule_id BETWEEN %s AND %s AND r.schedule_id = %s + m.n - 1",
                [moments, first, last, first],
            )
            assert cursor.rowcount == PUNCTUAL
        wait_until(lambda: not _has_open(first, last), 60, lambda: f"{_left(first, last)} are left", interval=0.2)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM started_at - trigger_at) * 1000 FROM schedules_run "
            "WHERE schedule_id BETWEEN %s AND %s ORDER BY 1",
            [first, last],
        )
        lags = [float(row[0]) for row in cursor.fetchall()]
    assert len(lags) == PUNCTUAL
    assert lags[0] >= 0, "one started early"
    return lags


def _question_ms() -> float:
    """Median of the claim's SELECT with 100 runs due, its locks included, nothing kept."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE schedules_run, schedules_schedule")
    taken = []
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE schedules_run SET due_at = now() - interval '1 second' WHERE id IN "
                "(SELECT id FROM schedules_run WHERE status = 'scheduled' ORDER BY id LIMIT 100)"
            )
        for _ in range(200):
            start = time.perf_counter()
            now = clock.now()
            ids = find_due_ids(range(SHARDS), now, settings.SCHEDULE_BATCH_SIZE)
            found = fetch_all(sql.LOCK_DUE_RUNS, {"ids": ids, "now": now})
            taken.append((time.perf_counter() - start) * 1000)
            assert len(found) == 100
        transaction.set_rollback(True)
    return sorted(taken)[100]


def _values(**fields: Any) -> dict[str, Any]:
    return {"name": "stored", "kind": NAME, "payload": {}, "time_zone": "UTC", **fields}


def _store(organization: Organization, count: int, name: str = "stored") -> tuple[int, int]:
    """Store `count` schedules that run once, tomorrow or later, each with its run.

    Return the ids of the first and the last schedule.
    """
    now = clock.now()
    first = now + timedelta(days=1)
    before = _last_id()
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # ten million checks of foreign keys take minutes
        cursor.execute(
            """
            WITH made AS (
                INSERT INTO schedules_schedule
                    (organization_id, name, kind, payload, headers, status, time_zone, trigger_at, unit, cron,
                    anchor,
                     retry_schedule_s, missed, missed_after_s, overlap, shard, version, next_at, occurrences,
                     failures, created_at, changed_at)
                SELECT %(organization)s, %(name)s, %(kind)s, '{}', '', 'active', 'UTC',
                       %(first)s + n * interval '1 second', '', '', %(now)s, '{}', 'last', 86400, 'allow',
                       n %% %(shards)s, 1, %(first)s + n * interval '1 second', 1, 0, %(now)s, %(now)s
                FROM generate_series(1, %(count)s) AS n
                RETURNING id, organization_id, kind, shard, trigger_at
            )
            INSERT INTO schedules_run
                (organization_id, schedule_id, kind, shard, number, trigger_at, due_at, status, attempt, epoch,
                lapses,
                 waiting_for, error, created_at)
            SELECT organization_id, id, kind, shard, 1, trigger_at, trigger_at, 'scheduled', 1, 0, 0, '', '',
            %(now)s
            FROM made
            """,
            {
                "organization": organization.pk, "name": name, "kind": NAME, "first": first, "now": now,
                "count": count, "shards": SHARDS,
            },
        )  # fmt: skip
        cursor.execute("RESET session_replication_role")
    return before + 1, _last_id()


def _last_id() -> int:
    return int(_fetch_one("SELECT COALESCE(max(id), 0) FROM schedules_schedule")[0])


def _fetch_one(statement: str, *given: Any) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given or None)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


def _bring_forward(first: int, last: int, by: timedelta) -> datetime:
    """Make the runs of these schedules due together, so much from now.

    What loading and changing them left to be written is not measured: it is written before they are due.
    """
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")
    due = clock.now() + by
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE schedules_schedule SET trigger_at = %s, next_at = %s WHERE id BETWEEN %s AND %s",
            [due, due, first, last],
        )
        cursor.execute(
            "UPDATE schedules_run SET trigger_at = %s, due_at = %s WHERE schedule_id BETWEEN %s AND %s",
            [due, due, first, last],
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE schedules_run, schedules_schedule")
        cursor.execute("CHECKPOINT")
    assert clock.now() < due, "they were due before they were prepared"
    return due


_OPEN = "schedule_id BETWEEN %s AND %s AND status IN ('scheduled', 'in_progress', 'running', 'retrying')"


def _has_open(first: int, last: int) -> bool:
    """Return whether a run of these schedules has not ended, by one look at an index.

    Counting them by their schedules' name read all stored schedules, on both cores and as long as the runs lasted.
    """
    found = fetch_by_index(
        f"SELECT 1 FROM schedules_run WHERE {_OPEN} ORDER BY schedule_id DESC LIMIT 1", (first, last)
    )
    return bool(found)


def _left(first: int, last: int) -> int:
    return int(_fetch_one(f"SELECT count(*) FROM schedules_run WHERE {_OPEN}", first, last)[0])


@contextmanager
def _site(workers: Sequence[str] = (QUEUE, settings.SCHEDULE_STATUS_QUEUE)) -> Iterator[None]:
    """A dispatcher with its executor, and one worker of each of these queues."""
    manage = [sys.executable, "manage.py"]
    only = "schedules_shards,schedules_executor,schedules_reconciler"
    specs = [ProcessSpec("dispatcher", [*manage, "dispatcher", "--only", only])]
    specs += [ProcessSpec(f"worker {queue}", [*manage, "worker", queue]) for queue in workers]
    env = environment(
        connection.settings_dict["NAME"],
        SCHEDULE_KIND_MODULES=json.dumps({NAME: MODULE}),
        LOG_LEVEL="WARNING",
        LOG_FORMAT="console",
    )
    connections.close_all()
    with Supervisor(specs, env, show=lambda name, line: "error" in line or "Traceback" in line):
        wait_until(
            lambda: fetch_all(sql.UNHELD_SHARDS, {"shards": SHARDS})[0][0] == 0, 60, "no executor took the shards"
        )
        for queue in workers:
            wait_until(lambda queue=queue: client().scard(f"rq:workers:{rq_queue(queue).name}"), 60, queue)
        yield
