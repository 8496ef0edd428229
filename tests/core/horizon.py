"""What a reader of the event log may read: nothing of a transaction that others, begun before it, have not
outlived.

Such others are not only ours: PostgreSQL's own maintenance is one, for a moment, at any time."""

from __future__ import annotations

from django.db import connection

from tests.waiting import wait_until

_PASSED = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > COALESCE((SELECT max(xid) FROM core_event), 0)
"""


def all_readable() -> None:
    """Returns when every event committed by now may be read. Outside of transactions."""

    def passed() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(_PASSED)
            return bool(cursor.fetchone()[0])

    wait_until(passed, message="a transaction stays open, so events cannot be read")
