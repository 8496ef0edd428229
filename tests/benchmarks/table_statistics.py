"""The state of PostgreSQL's statistics on the tables of a benchmark.

After a restore or a bulk load, tables have no statistics until they are analyzed. Suites measure both states.
"""

from __future__ import annotations

from django.db import connection

UNANALYZED, ANALYZED = "never analyzed", "analyzed"


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def switch_autovacuum_off() -> None:
    """Let nothing but `analyze` analyze the tables."""
    _alter_tables("SET (autovacuum_enabled = false)")


def switch_autovacuum_on() -> None:
    _alter_tables("RESET (autovacuum_enabled)")


def _alter_tables(action: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT format('%I', tablename) FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} {action}")
