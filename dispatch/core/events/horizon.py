"""Find the transaction that holds back the readers of the event log: the oldest open one with an id.

It can be in any database of the cluster. A role without privileges can see it; only the age of other roles'
sessions is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

_HOLDER = """
SELECT kind, name, application, database, since FROM (
    SELECT 'session' AS kind, pid::text AS name, COALESCE(application_name, '') AS application,
           COALESCE(datname, '') AS database, xact_start AS since, age(backend_xid) AS transactions
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT 'prepared transaction', gid, '', database, prepared, age(transaction) FROM pg_prepared_xacts
) AS holders
ORDER BY transactions DESC LIMIT 1
"""


@dataclass(frozen=True)
class Holder:
    """A session (`name` is its process id) or a prepared transaction (`name` is its global id).

    `since` is None if the database hides it.
    """

    kind: str
    name: str
    application: str
    database: str
    since: datetime | None

    def __str__(self) -> str:
        application = f"{self.application}, " if self.application else ""
        return f"{self.kind} {self.name} ({application}database {self.database})"


def find_holder() -> Holder | None:
    """Return the session or prepared transaction that holds the horizon back; None if no other has an id."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLDER)
        row = cursor.fetchone()
    return Holder(*row) if row else None
