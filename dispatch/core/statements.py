"""Hand-written SQL of the hot paths, run as prepared statements on Django's connection.

Planning such a statement costs more than running it. A slice keeps its statements in its `sql.py` and runs them
with these; each takes its time as %(now)s, or the database's own clock as DB_NOW."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection

from dispatch.core import clock

# The database's clock, moved along with the tests'.
DB_NOW = "(clock_timestamp() + make_interval(secs => %(offset)s::float8))"

# What comes before the SELECT that says which events to append.
EVENTS = """
INSERT INTO core_event
    (organization_id, kind, subject_type, subject_id, actor_type, actor_id, actor_label, data, at)
"""


def rows(sql: str, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Runs one statement on Django's connection as a prepared one (planning costs more than running them) and
    returns its rows. Raises django.db errors, in a pipeline also those of the statements before it."""
    with connection.wrap_database_errors:
        return _execute(sql, params).fetchall()


def do(sql: str, params: Mapping[str, Any] | None = None) -> None:
    """One statement without an answer; in a pipeline it is not waited for."""
    with connection.wrap_database_errors:
        _execute(sql, params)


def ask(sql: str, params: Mapping[str, Any] | None = None) -> Callable[[], list[tuple[Any, ...]]]:
    """As `rows`, but the answer is waited for when it is called for."""
    with connection.wrap_database_errors:
        cursor = _execute(sql, params)

    def answer() -> list[tuple[Any, ...]]:
        with connection.wrap_database_errors:
            return cursor.fetchall()

    return answer


@contextmanager
def pipelined() -> Iterator[None]:
    """Inside, statements are sent without waiting for those before them: one round trip until an answer is needed.
    Open it inside the transaction."""
    connection.ensure_connection()
    with connection.wrap_database_errors, connection.connection.pipeline():
        yield


def _execute(sql: str, params: Mapping[str, Any] | None) -> psycopg.Cursor[Any]:
    connection.ensure_connection()
    given = {"offset": clock.offset_ms() / 1000, **(params or {})}
    cursor = psycopg.Cursor(connection.connection)
    cursor.execute(sql.encode(), given, prepare=True)
    return cursor


def columns(items: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows turned into columns, for unnest()."""
    return [list(column) for column in zip(*items, strict=True)] if items else [[] for _ in range(width)]
