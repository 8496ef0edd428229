"""Measure what grows with the number of runs.

A table of 10,000,000 waiting runs, unpartitioned and partitioned by shard; disk space per run; the cost of
deleting old runs; the throughput of one process of each kind. The large tables are copies of Dispatch's with all
indexes, filled without schedules; BENCH_GROWTH sets their size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from dispatch.core import clock
from dispatch.core.db.prepared import fetch_all
from dispatch.schedules import kinds, sql
from dispatch.schedules.models import SHARDS
from dispatch.schedules.services import results, worker
from dispatch.schedules.services.executor import FRESH, claim_due_runs
from tests.benchmarks import Result, schedules
from tests.benchmarks.noop_kind import KIND, NAME
from tests.support import factories

GROWTH = int(os.environ.get("BENCH_GROWTH", "10_000_000"))
TAKEN = 50_000
MONTH = 1_000_000
PARTITIONS = 8
AT_ONCE = 5_000  # rows that retention deletes in one transaction
_COLUMNS = (
    "id, organization_id, schedule_id, kind, shard, number, trigger_at, due_at, status, attempt, epoch, lapses, "
    "waiting_for, error, created_at, ended_at"
)


def run() -> Iterator[Result]:
    kinds.register(KIND)
    settings.SCHEDULE_KIND_QUEUES[NAME] = schedules.QUEUE
    settings.RQ_QUEUES.setdefault(schedules.QUEUE, dict(settings.RQ_QUEUES[settings.SCHEDULE_STATUS_QUEUE]))
    yield from _of_one_run()
    _fill("bench_whole")
    yield Result(f"bytes for a waiting run among {GROWTH:,}", _bytes("bench_whole") / GROWTH, "bytes")
    yield Result(f"of which indexes, among {GROWTH:,}", _bytes("bench_whole", "indexes") / GROWTH, "bytes")
    yield Result(f"executor's question, 100 due, {GROWTH:,} runs stored", _question_ms("bench_whole"), "ms")
    _fill("bench_parts", parts=True)
    mine = range(0, SHARDS, PARTITIONS)
    in_parts = _question_ms("bench_parts", mine)
    yield Result(f"the same for {len(mine)} shards, in {PARTITIONS} partitions by shard", in_parts, "ms")
    yield Result("partitions that this reads", float(_read("bench_parts", mine)), "partitions", "<= 1")
    yield from _forgetting()


def _of_one_run() -> Iterator[Result]:
    """In this process, one after the other: executor, worker, status worker; and what is on the disk then."""
    organization = factories.organization("Copper State HVAC")
    tables = ("schedules_run", "schedules_runreport", "core_event")
    schedules._store(organization, TAKEN)
    _do("VACUUM ANALYZE schedules_run, schedules_schedule")
    stored = (_bytes("schedules_schedule") + _bytes("schedules_run")) / TAKEN
    before = sum(_bytes(table) for table in tables)
    _do("UPDATE schedules_run SET trigger_at = now() - interval '1 s', due_at = now() - interval '1 s'")
    _do("VACUUM FULL ANALYZE schedules_run")
    began = time.perf_counter()
    while claim_due_runs(range(SHARDS)).found:
        pass
    taken = time.perf_counter() - began
    pairs = fetch_all("SELECT id, epoch FROM schedules_run WHERE status = 'in_progress' ORDER BY id")
    chunk = settings.SCHEDULE_CHUNK_SIZE
    began = time.perf_counter()
    for first in range(0, len(pairs), chunk):
        worker.work_runs(NAME, pairs[first : first + chunk])
    worked = time.perf_counter() - began
    ids = [row[0] for row in pairs]
    began = time.perf_counter()
    for first in range(0, len(ids), chunk):
        results.apply_reports(ids[first : first + chunk])
    applied = time.perf_counter() - began
    _do("VACUUM FULL schedules_run")
    _do("VACUUM FULL core_event")
    kept = (sum(_bytes(table) for table in tables) - before) / TAKEN
    yield Result("bytes for a schedule and its waiting run", stored, "bytes")
    yield Result("bytes more when it has run (report, 3 events)", kept, "bytes")
    yield Result("one executor takes", TAKEN / taken, "runs/s")
    yield Result("one worker begins and reports", TAKEN / worked, "runs/s")
    yield Result("one status worker records", TAKEN / applied, "runs/s")


def _fill(name: str, parts: bool = False) -> None:
    """GROWTH waiting runs over a year; the first hundred due. The indexes are made afterwards: that is quicker."""
    _copy(name, "PARTITION BY LIST (shard)" if parts else "")
    for part in range(PARTITIONS) if parts else ():
        shards = ", ".join(str(shard) for shard in range(SHARDS) if shard % PARTITIONS == part)
        _do(f"CREATE TABLE {name}_{part} PARTITION OF {name} FOR VALUES IN ({shards})")
    _do(
        f"""
        INSERT INTO {name} ({_COLUMNS})
        SELECT n, 1, n, 'noop', mod(n, %(shards)s), 1, t.at, t.at, 'scheduled', 1, 0, 0, '', '', now(), NULL
        FROM generate_series(1, %(count)s) AS n
        CROSS JOIN LATERAL (
            SELECT now() + CASE WHEN n <= 100 * {PARTITIONS} THEN interval '-1 s'
                                ELSE interval '1 day' + n::float8 / %(count)s * interval '365 days' END AS at
        ) t
        """,
        {"count": GROWTH, "shards": SHARDS},
    )
    _index(name, parts)
    _do(f"VACUUM ANALYZE {name}")


def _forgetting() -> Iterator[Result]:
    """A month of ended runs: deleted row by row as retention does it, and dropped as a partition."""
    _copy("bench_ended", "PARTITION BY RANGE (ended_at)")
    for month in (1, 2):
        bounds = f"FROM ('2026-0{month}-01') TO ('2026-0{month + 1}-01')"
        _do(f"CREATE TABLE bench_ended_{month} PARTITION OF bench_ended FOR VALUES {bounds}")
        _do(
            f"""
            INSERT INTO bench_ended ({_COLUMNS})
            SELECT n, 1, n, 'noop', mod(n, {SHARDS}), 1, t.at, t.at, 'succeeded', 1, 1, 0, '', '', t.at, t.at
            FROM generate_series(1, {MONTH}) AS n
            CROSS JOIN LATERAL (
                SELECT '2026-0{month}-01'::timestamptz + n::float8 / {MONTH} * interval '27 days' AS at
            ) t
            """
        )
    _index("bench_ended", parts=True)
    began = time.perf_counter()
    while fetch_all(
        f"WITH old AS (SELECT id FROM bench_ended_1 ORDER BY ended_at LIMIT {AT_ONCE}), gone AS ("
        "DELETE FROM bench_ended_1 WHERE id IN (SELECT id FROM old) RETURNING 1) SELECT count(*) FROM gone"
    )[0][0]:
        pass
    deleted = time.perf_counter() - began
    began = time.perf_counter()
    _do("DROP TABLE bench_ended_2")
    yield Result(f"{MONTH:,} ended runs deleted, {AT_ONCE:,} at a time", deleted, "s")
    yield Result(f"{MONTH:,} ended runs dropped as a partition", time.perf_counter() - began, "s")


def _copy(name: str, partitions: str) -> None:
    _do(f"DROP TABLE IF EXISTS {name}")
    _do(f"CREATE TABLE {name} (LIKE schedules_run INCLUDING DEFAULTS) {partitions}")


def _index(name: str, parts: bool) -> None:
    """All indexes of runs. In partitions a unique one has to name what divides them, so there none is unique."""
    for (definition,) in fetch_all("SELECT indexdef FROM pg_indexes WHERE tablename = 'schedules_run'"):
        _, _, on = definition.partition(" USING ")
        unique = "UNIQUE " if "UNIQUE" in definition and not parts else ""
        _do(f"CREATE {unique}INDEX ON {name} USING {on}")


def _question_ms(name: str, shards: Any = range(SHARDS)) -> float:
    """Median of the claim's first part, which finds what is due."""
    statement, given = _asked(name, shards)
    taken = []
    for _ in range(200):
        began = time.perf_counter()
        found = fetch_all(statement, given)
        taken.append((time.perf_counter() - began) * 1000)
        assert len(found) == 100
    return sorted(taken)[100]


def _asked(name: str, shards: Any) -> tuple[str, dict[str, Any]]:
    """sql.DUE_IDS on another table."""
    due = sql.DUE_IDS.replace("schedules_run", name)
    locked = f"""
    WITH due AS ({due}) SELECT r.id FROM {name} r
    WHERE r.id = ANY(ARRAY(SELECT id FROM due)) AND r.shard = ANY(%(shards)s::smallint[])
      AND COALESCE(r.status, '') IN ('scheduled', 'retrying')
    FOR NO KEY UPDATE OF r SKIP LOCKED
    """
    now, names = clock.now(), [kind.name for kind in kinds.all_kinds()]
    return locked, {"shards": list(shards), "limit": 100, "now": now, "late": now - FRESH, "kinds": names}


def _read(name: str, shards: Any) -> int:
    """How many partitions the executor's question looks into."""
    statement, given = _asked(name, shards)
    with transaction.atomic():
        plan = [row[0] for row in fetch_all(f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", given)]
    return len(
        {
            part
            for part in range(PARTITIONS)
            for line in plan
            if f"on {name}_{part} " in line and "never executed" not in line
        }
    )


def _bytes(name: str, what: str = "total_relation") -> int:
    return int(fetch_all(f"SELECT pg_{what}_size(%s::regclass)", [name])[0][0])


def _do(statement: str, given: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
