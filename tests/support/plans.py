"""Count the rows that a statement reads from tables of which PostgreSQL has no statistics, or wrong ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.db import connection


def forget_statistics(tables: Sequence[str]) -> None:
    """Make PostgreSQL plan as if it had never analyzed these tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM pg_statistic WHERE starelid = ANY(SELECT oid FROM pg_class WHERE relname = ANY(%s))",
            [list(tables)],
        )
        cursor.execute("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relname = ANY(%s)", [list(tables)])


def pretend_empty(tables: Sequence[str]) -> None:
    """Make PostgreSQL plan as if it had analyzed these tables before their rows were committed.

    Autovacuum does so while a large batch is written. Until its next visit, each table seems to have no row.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT oid FROM pg_class WHERE relname = ANY(%s) UNION SELECT indexrelid FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indrelid WHERE c.relname = ANY(%s)",
            [list(tables), list(tables)],
        )
        found = [oid for (oid,) in cursor.fetchall()]
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = ANY(%s)", [found])
        cursor.execute(
            "UPDATE pg_class SET reltuples = 0,"
            " relpages = pg_relation_size(oid) / current_setting('block_size')::int WHERE oid = ANY(%s)",
            [found],
        )


def explain_rows_read(statement: str, given: dict[str, Any] | Sequence[Any]) -> float:
    """Run the statement, and return how many rows it read."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, given)
        (found,) = cursor.fetchone()
    plan = found if isinstance(found, list) else json.loads(found)
    return count_rows(plan[0]["Plan"])


def count_rows(node: dict[str, Any]) -> float:
    """Return the rows that the scans of tables below this node read, whether they matched or not."""
    read = 0.0
    if "Relation Name" in node:
        dropped = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck"))
        read = (node["Actual Rows"] + dropped) * node["Actual Loops"]
    elif node.get("Rows Removed by Join Filter"):
        read = node["Rows Removed by Join Filter"] * node["Actual Loops"]
    return read + sum(count_rows(child) for child in node.get("Plans", ()))
