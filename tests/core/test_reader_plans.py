"""An idle reader reads no event before its position, whatever PostgreSQL knows about the table."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.events import early_reader, readers
from dispatch.core.models import EventCursor
from tests.support.plans import explain_rows_read, forget_statistics

pytestmark = pytest.mark.django_db

ROWS = 20_000


@pytest.fixture
def last() -> int:
    """Append thousands of events that the reader has handled. Return the id of the last one."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO core_event (xid, organization_id, kind, subject_type, subject_id, actor_type, actor_label,
                data, at)
            SELECT n, 1, 'job.' || n %% 10, 'job', n, 'system', '', '{}', now() FROM generate_series(1, %s) n
            """,
            [ROWS],
        )
        cursor.execute("SELECT max(id) FROM core_event")
        found = int(cursor.fetchone()[0])
    EventCursor.objects.create(name="test", xid=ROWS, event_id=found)
    return found


def rows_read(last: int) -> list[float]:
    """Return how many rows an early reader's two looks and a durable reader's look read."""
    given = {"name": "test", "kinds": ["job.1"], "taken": [1, 2], "floor": 0}
    full, recent = (early_reader.PEEK.format(order=early_reader.ORDER[is_full]) for is_full in (True, False))
    filters = {"kinds": ["job.1"], "without": [], "but": [], "subjects": None}
    with transaction.atomic(), prepared.index_plans():
        durable = explain_rows_read(readers._PEEK, {"name": "test", "now": clock.now(), **filters})
        early = [explain_rows_read(full, given), explain_rows_read(recent, {**given, "floor": last - 10})]
        transaction.set_rollback(True)  # and the choice of plans
    return [durable, *early]


def test_an_idle_reader_reads_no_event_before_its_position(last: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE core_event")
    analyzed = rows_read(last)
    forget_statistics(["core_event"])
    assert max(analyzed + rows_read(last)) <= 50
