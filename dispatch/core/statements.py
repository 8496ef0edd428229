"""Hand-written SQL of the hot paths, run as prepared statements on Django's connection.

Planning such a statement costs more than running it. A slice keeps its statements in its `sql.py` and runs them
with these; each takes its time as %(now)s, or the database's own clock as DB_NOW. Parameters are given by name, or
in their order for %s."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections

from dispatch.core import clock

# The database's clock, moved along with the tests'.
DB_NOW = "(clock_timestamp() + make_interval(secs => %(offset)s::float8))"

# Django forbids preparing unless told otherwise; a threshold that is never reached leaves it to who asks for it.
_ONLY_ON_DEMAND = 2**31 - 1
# A plan made while a table was small would be kept while it grows, so plans are made anew this often.
PLANS_S = 5.0
# Without bitmaps, for a plain scan of an index marks what is dead in it, and the next passes that over: where rows
# change all the time, the others read all that died since the last vacuum, each time.
_ONE_PLAN = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true)
"""
_planned_at: weakref.WeakKeyDictionary[psycopg.Connection[Any], float] = weakref.WeakKeyDictionary()

_BY_INDEX = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)
"""

# What comes before the SELECT that says which events to append.
EVENTS = """
INSERT INTO core_event
    (organization_id, kind, subject_type, subject_id, actor_type, actor_id, actor_label, data, at)
"""


Params = Mapping[str, Any] | Sequence[Any] | None


def rows(sql: str, params: Params = None) -> list[tuple[Any, ...]]:
    """Runs one statement on Django's connection as a prepared one (planning costs more than running them) and
    returns its rows. Raises django.db errors, in a pipeline also those of the statements before it."""
    database = _database()
    with database.wrap_database_errors:
        return _execute(database, sql, params).fetchall()


def count(sql: str, params: Params = None) -> int:
    """Runs one statement and returns how many rows it touched. Not for a pipeline."""
    database = _database()
    with database.wrap_database_errors:
        return _execute(database, sql, params).rowcount


def do(sql: str, params: Params = None) -> None:
    """One statement without an answer; in a pipeline it is not waited for."""
    database = _database()
    with database.wrap_database_errors:
        _execute(database, sql, params)


def ask(sql: str, params: Params = None) -> Callable[[], list[tuple[Any, ...]]]:
    """As `rows`, but the answer is waited for when it is called for."""
    database = _database()
    with database.wrap_database_errors:
        cursor = _execute(database, sql, params)

    def answer() -> list[tuple[Any, ...]]:
        with database.wrap_database_errors:
            return cursor.fetchall()

    return answer


def flush_later() -> None:
    """The commit of the running transaction does not wait for the disk. For steps that are taken anew, from rows
    that are on disk, should the database crash within half a second. Any later commit that does wait brings them
    to the disk first; so what the world is asked for must come after such a commit."""
    do("SET LOCAL synchronous_commit = off")


@contextmanager
def pipelined(*, one_plan: bool = False) -> Iterator[None]:
    """Inside, statements are sent without waiting for those before them: one round trip until an answer is needed.
    Open it inside the transaction.

    `one_plan`: until the transaction ends, statements keep one plan for whatever they are given, and go by indexes
    also where a table is small now. Where PostgreSQL would plan anew each time, that can be most of the work; not
    for statements whose best plan hangs on a parameter."""
    database = _database()
    database.ensure_connection()
    with database.wrap_database_errors, database.connection.pipeline():
        if one_plan:
            do(_ONE_PLAN)
        yield


def by_index() -> None:
    """Until the transaction ends, statements keep one plan and look rows up by index: for batches that know the
    keys of all that they touch, whatever the planner believes of a table that grew a moment ago."""
    do(_BY_INDEX)


def _database() -> Any:
    """This thread's connection itself: Django's `connection` looks it up anew for everything it is asked."""
    return connections[DEFAULT_DB_ALIAS]


def _execute(database: Any, sql: str, params: Params) -> psycopg.Cursor[Any]:
    database.close_if_health_check_failed()
    database.ensure_connection()
    if params is None or isinstance(params, Mapping):
        params = {"offset": clock.offset_ms() / 1000, **(params or {})}
    _keep_plans_fresh(database.connection)
    cursor = psycopg.Cursor(database.connection)
    cursor.execute(sql.encode(), params, prepare=True)
    return cursor


def _keep_plans_fresh(raw: psycopg.Connection[Any]) -> None:
    now = time.monotonic()
    planned_at = _planned_at.get(raw)
    if planned_at is None:
        raw.prepare_threshold = _ONLY_ON_DEMAND
    elif now - planned_at < PLANS_S:
        return
    else:
        psycopg.Cursor(raw).execute(b"DISCARD PLANS")  # a cursor of its own: in a pipeline each keeps its answers
    _planned_at[raw] = now


def columns(items: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows turned into columns, for unnest()."""
    return [list(column) for column in zip(*items, strict=True)] if items else [[] for _ in range(width)]


def integers(values: Iterable[int]) -> str:
    """Whole numbers as the text of an array: a parameter that the driver need not take apart."""
    return "{" + ",".join(map(str, values)) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Texts, and NULLs, as the text of an array."""
    items = list(values)
    if items and None not in items:
        joined = '","'.join(items)  # type: ignore[arg-type]
        if "\\" not in joined and joined.count('"') == 2 * (len(items) - 1):  # nothing to escape, as nearly always
            return '{"' + joined + '"}'
    return "{" + ",".join("NULL" if text is None else _element(text) for text in items) + "}"


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
