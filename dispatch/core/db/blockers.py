"""Find what a database session waits for: the sessions and prepared transactions that hold its locks."""

from __future__ import annotations

from django.db import connection

from dispatch.core.events import horizon

# pg_blocking_pids() names a prepared transaction as 0.
_BLOCKERS = """
SELECT 'session ' || a.pid, COALESCE(a.application_name, ''), COALESCE(a.datname, '')
FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids(%(pid)s))
UNION ALL
SELECT DISTINCT 'prepared transaction ' || p.gid, '', p.database
FROM pg_prepared_xacts p
JOIN pg_locks held ON held.virtualtransaction = '-1/' || p.transaction::text
JOIN pg_locks waiting ON waiting.pid = %(pid)s AND NOT waiting.granted
    AND (waiting.transactionid = p.transaction OR waiting.relation = held.relation)
WHERE 0 = ANY(pg_blocking_pids(%(pid)s))
"""


def find_blockers(pid: int) -> list[str]:
    """Describe what holds the locks that the session waits for; empty if it waits for none."""
    with connection.cursor() as cursor:
        cursor.execute(_BLOCKERS, {"pid": pid})
        return [
            f"{name} ({f'{application}, ' if application else ''}database {database})"
            for name, application, database in cursor.fetchall()
        ]


def describe_wait(pid: int | None) -> tuple[str, str]:
    """Return what the session waits for, and the oldest transaction of the cluster; each may be empty."""
    holder = horizon.find_holder()
    return ", ".join(find_blockers(pid)) if pid else "", str(holder) if holder else ""
