"""Wait until the events of the log are readable.

A reader may read an event only when all transactions that began before the event's have ended. These are not only
ours: PostgreSQL's own maintenance can run one briefly at any time.
"""

from __future__ import annotations

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
