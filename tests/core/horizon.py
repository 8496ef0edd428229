"""Wait until the events of the log are readable, or keep them unreadable.

A reader may read an event only when all transactions that began before the event's have ended. These are not only
ours: PostgreSQL's own maintenance can run one briefly at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection

from tests.support.waiting import wait_until

_PASSED = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > COALESCE((SELECT max(xid) FROM core_event), 0)
"""


def all_readable() -> None:
    """Return when every event committed by now may be read. Call it outside transactions."""

    def passed() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(_PASSED)
            return bool(cursor.fetchone()[0])

    wait_until(passed, message="a transaction stays open, so events cannot be read")


def _oldest_open() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        return cursor.fetchone()


APPLICATION = "nightly-etl"


@contextmanager
def held_horizon(database: str = "") -> Iterator[int]:
    """Hold an open transaction with an id, in `database` (default: the tests'), and yield its process id.

    Every durable reader of the event log waits for it, even in another database of the cluster.
    """
    parameters = connection.get_connection_params()
    wanted = ("host", "port", "user", "password", "dbname")
    arguments = {name: parameters[name] for name in wanted if parameters.get(name)}
    if database:
        arguments["dbname"] = database
    with psycopg.connect(**arguments, application_name=APPLICATION) as session:
        held = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        wait_until(lambda: _oldest_open() == held, message="an older transaction stays open")
        yield session.info.backend_pid
        session.rollback()
