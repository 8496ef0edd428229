"""Run the hand-written SQL of the hot paths as prepared statements on Django's connection.

Planning such a statement costs more than running it. The statements of a slice are in its `sql` module. Each takes
the time as %(now)s, or the database's clock as DB_NOW. Parameters are either named or positional (%s).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections

from dispatch.core import clock
from dispatch.core.db.postgres.prepared_statements import Result, run_script
from dispatch.core.db.postgres.statements import Change, Pending, Statements

# The database's clock, shifted like the tests' clock.
DB_NOW = "(clock_timestamp() + make_interval(secs => %(offset)s::float8))"

# A plan made while a table was small would stay in use while the table grows, so plans are discarded this often.
PLANS_S = 5.0
DISCARD_PLANS = "DISCARD PLANS"
# Disable bitmap scans: plain index scans mark dead entries, so later scans skip them. In tables that change
# constantly, each bitmap scan would read all entries that have died since the last vacuum.
_ONE_PLAN = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true)
"""

_BY_INDEX = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)
"""

# By name: whether a plan may sort.
_SORTING = {
    on: f"SELECT set_config('enable_sort', '{on}', true), set_config('enable_incremental_sort', '{on}', true)"
    for on in ("on", "off")
}

# The beginning of a statement that appends events; the SELECT that lists them follows.
EVENTS = """
INSERT INTO core_event
    (organization_id, kind, subject_type, subject_id, actor_type, actor_id, actor_label, data, at)
"""


# See `defer_fsync`.
NO_FSYNC = {"synchronous_commit": "off"}

Params = Mapping[str, Any] | Sequence[Any] | None


def fetch_all(sql: str, params: Params = None) -> list[tuple[Any, ...]]:
    """Run one prepared statement on Django's connection and return its rows.

    Raises django.db errors; in a pipeline, also those of earlier statements.
    """
    database = _database()
    with database.wrap_database_errors:
        return _execute(database, sql, params).fetchall()


def execute_rowcount(sql: str, params: Params = None) -> int:
    """Run one statement and return how many rows it affected. Not for a pipeline."""
    database = _database()
    with database.wrap_database_errors:
        return _execute(database, sql, params).rowcount


def execute(sql: str, params: Params = None) -> None:
    """Run one statement without a result. A pipeline does not wait for it."""
    database = _database()
    with database.wrap_database_errors:
        _execute(database, sql, params)


def change_later(
    sql: str, params: Params = None, *, then: Callable[[Result], None] | None = None, refusal: str = ""
) -> None:
    """Run a statement with the next one of the transaction, in one round trip; without a transaction, now.

    Neither does the end of a pipeline send it, but the next statement, or the commit.

    Its errors are raised then, but inside the same savepoint. `then` gets its result, and raises nothing.
    `refusal`: the text of the DatabaseError if the statement divides by zero, as one does that counts the rows it
    needs.
    """
    database = _database()
    with database.wrap_database_errors:
        statements = _statements(database)
        change = Change(statements.prepared.dump(sql, _with_offset(params)), then, refusal)
        if database.in_atomic_block:
            database.begin().change_later(change)
        elif statements.pipeline is not None:
            statements.pipeline.add_change(change)
        else:
            statements.change_later(change)
            statements.flush()


def fetch_later(sql: str, params: Params = None) -> Callable[[], list[tuple[Any, ...]]]:
    """Run like `fetch_all`, but return a function that waits for the rows."""
    database = _database()
    with database.wrap_database_errors:
        cursor = _execute(database, sql, params)

    def answer() -> list[tuple[Any, ...]]:
        with database.wrap_database_errors:
            return cursor.fetchall()

    return answer


def set_local(**parameters: str) -> None:
    """Set parameters of the session until the transaction ends, if possible in the round trip that begins it."""
    _database().set_local(**parameters)


def defer_fsync() -> None:
    """Set synchronous_commit=off for this transaction: its commit does not wait for the disk.

    Only for steps that can be repeated safely after a crash, from rows that are on disk: a crash can lose the last
    half second. A later synchronous commit flushes them too, so cause external effects only after such a commit.
    """
    set_local(**NO_FSYNC)


@contextmanager
def pipeline(*, one_plan: bool = False) -> Iterator[None]:
    """Send statements together, when a result is needed: one round trip for all until then.

    Open it inside the transaction; outside one, only for statements of this module. An exception that leaves it
    before all statements were sent fails the transaction. With `one_plan`, statements keep one generic plan until
    the transaction ends and use indexes even where a table is small now. Where PostgreSQL would replan each time,
    that can be most of the work. Not for statements whose best plan depends on a parameter.
    """
    database = _database()
    database.ensure_connection()
    statements = Statements.of(database.connection)
    with database.wrap_database_errors, statements.open_pipeline():
        if one_plan:
            execute(_ONE_PLAN)
        yield


def prefer_index_plans() -> None:
    """Force generic plans and index lookups until the transaction ends.

    For batches that know the keys of all their rows: right after a table has grown, its statistics are misleading.
    """
    execute(_BY_INDEX)


@contextmanager
def index_plans(limit_s: float | None = None) -> Iterator[None]:
    """Run the statements inside with `prefer_index_plans`, in one pipeline.

    For passes that usually find no row: a table that was never analyzed would be read as a whole. Without an open
    transaction, the pipeline is one. With `limit_s`, PostgreSQL cancels a statement that takes longer.
    """
    with pipeline():
        if limit_s is None:
            prefer_index_plans()
        else:
            execute(f"{_BY_INDEX}, set_config('statement_timeout', '{round(limit_s * 1000)}', true)")
        yield


@contextmanager
def index_order() -> Iterator[None]:
    """Plan the statements inside so that indexes give the order of their rows. Only in a pipeline that is open.

    For statements that skip through an index, one row at a time: a smaller index can seem cheaper to the planner,
    although all its rows would be sorted at each step.
    """
    execute(_SORTING["off"])
    yield
    execute(_SORTING["on"])


def fetch_by_index(sql: str, params: Params = None) -> list[tuple[Any, ...]]:
    """Run like `fetch_all`, but with `index_plans`, in one round trip."""
    with index_plans():
        answer = fetch_later(sql, params)
    return answer()


def fetch_in_order(sql: str, params: Params = None) -> list[tuple[Any, ...]]:
    """Run like `fetch_by_index`, and let only indexes give the order of the rows (see `index_order`)."""
    with index_plans(), index_order():
        answer = fetch_later(sql, params)
    return answer()


def keep_plans(seconds: float) -> None:
    """Keep the plans of this thread's connection for so long.

    For a connection whose statements all run with `index_plans`, which depend little on the size of a table.
    """
    database = _database()
    database.ensure_connection()
    Statements.of(database.connection).plans_s = seconds


def _database() -> Any:
    """Return this thread's connection. Django's `connection` proxy would look it up at each access."""
    return connections[DEFAULT_DB_ALIAS]


def _execute(database: Any, sql: str, params: Params) -> Result | Pending:
    params = _with_offset(params)
    statements = _statements(database)
    if statements.pipeline is not None:
        return statements.pipeline.add(sql, params)
    return database.begin().run(sql, params)


def _with_offset(params: Params) -> Any:
    """Return the parameters, with that of DB_NOW if they are named."""
    if params is None or isinstance(params, Mapping):
        return {"offset": clock.offset_ms() / 1000, **(params or {})}
    return params


def _statements(database: Any) -> Statements:
    """Return the statements of a connection that is open, with plans that are not old."""
    if not database.in_atomic_block or database.connection is None:
        database.close_if_health_check_failed()
        database.ensure_connection()
    statements = Statements.of(database.connection)
    _keep_plans_fresh(database.connection, statements)
    return statements


def _keep_plans_fresh(raw: psycopg.Connection[Any], statements: Statements) -> None:
    now = time.monotonic()
    if now - statements.planned_at < (PLANS_S if statements.plans_s is None else statements.plans_s):
        return
    if statements.pipeline is not None:
        statements.pipeline.add_text(DISCARD_PLANS, is_needed=False)
    else:
        run_script(raw, DISCARD_PLANS)
    statements.planned_at = now


def columns(items: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Transpose rows into columns, for unnest()."""
    return [list(column) for column in zip(*items, strict=True)] if items else [[] for _ in range(width)]


def arrays(rows: Sequence[Sequence[Any]], **writers: Callable[[Iterable[Any]], str]) -> dict[str, str]:
    """Transpose rows into array literals, for unnest(): for each column its name and how to write it.

    The driver needs a microsecond for each element of a list; these literals need a tenth of that.
    """
    if not rows:
        return dict.fromkeys(writers, "{}")
    found = zip(*rows, strict=True)
    return {name: write(column) for (name, write), column in zip(writers.items(), found, strict=True)}


def integers(values: Iterable[int | None]) -> str:
    """Return integers and NULLs as an array literal, so that the driver need not adapt each one."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def floats(values: Iterable[float]) -> str:
    """Return floats as an array literal."""
    return "{" + ",".join(map(repr, values)) + "}"


def booleans(values: Iterable[bool]) -> str:
    """Return booleans as an array literal."""
    return "{" + ",".join(["t" if value else "f" for value in values]) + "}"


def timestamps(values: Iterable[datetime | None]) -> str:
    """Return moments with their offsets from UTC, and NULLs, as an array literal."""
    return "{" + ",".join(["NULL" if value is None else f'"{value.isoformat()}"' for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Return texts and NULLs as an array literal."""
    items = list(values)
    if items and None not in items:
        joined = '","'.join(items)  # type: ignore[arg-type]
        if "\\" not in joined and joined.count('"') == 2 * (len(items) - 1):  # nothing to escape, as nearly always
            return '{"' + joined + '"}'
    return "{" + ",".join("NULL" if text is None else _element(text) for text in items) + "}"


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
