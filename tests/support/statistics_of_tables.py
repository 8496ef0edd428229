"""Remove what the planner knows of tables, so that a plan does not depend on what autovacuum did meanwhile."""

from __future__ import annotations

from django.db import connection


def delete_statistics(*tables: str) -> None:
    """Make these tables look as if they were never analyzed, until the end of the transaction."""
    names = [list(tables)]
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM pg_statistic WHERE starelid = ANY(SELECT oid FROM pg_class WHERE relname = ANY(%s))",
            names,
        )
        cursor.execute("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relname = ANY(%s)", names)
