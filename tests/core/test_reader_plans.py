"""An idle reader reads no event before its position, whatever PostgreSQL knows about the table."""

from __future__ import annotations

import json

import pytest
from django.db import connection, transaction

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.events import early_reader, readers
from dispatch.core.models import EventCursor
from tests.support.plans import count_rows, explain_rows_read, forget_statistics

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
        durable = explain_rows_read(readers._PEEK, {"name": "test", "now": clock.now(), "most": 2000, **filters})
        early = [explain_rows_read(full, given), explain_rows_read(recent, {**given, "floor": last - 10})]
        transaction.set_rollback(True)  # and the choice of plans
    return [durable, *early]


def test_an_idle_reader_reads_no_event_before_its_position(last: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE core_event")
    analyzed = rows_read(last)
    forget_statistics(["core_event"])
    assert max(analyzed + rows_read(last)) <= 50


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_reader_that_is_far_behind_reads_one_batch_of_the_log(last: int, mode: str) -> None:
    given = {
        "name": "test", "xid": 1000, "id": 0, "limit": 200, "horizon": readers.ANY_XID, "organization": 1,
        "kinds": ["job.1", "job.2"], "without": [], "but": [], "subjects": None,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('plan_cache_mode', %s, true)", [mode])
        cursor.execute("ANALYZE core_event")
    for forget in (False, True):
        if forget:
            forget_statistics(["core_event"])
        for condition in (readers._NEXT_READABLE, readers._NEXT_OF_OTHERS, readers._NEXT_OF_ONE):
            statement = f"EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM core_event t WHERE {condition}"
            with readers.index_order():
                ((found,),) = prepared.fetch_all(statement, given)
            plan = found if isinstance(found, list) else json.loads(found)
            assert count_rows(plan[0]["Plan"]) <= 1100, "two of ten events are wanted"


def test_an_early_reader_that_is_far_behind_reads_one_batch_of_the_log(last: int) -> None:
    EventCursor.objects.filter(name="test").update(xid=1000, event_id=0)
    given = {
        "name": "test",
        "kinds": ["job.1", "job.2"],
        "taken": [1, 2],
        "floor": last - ROWS + 1000,
        "limit": 200,
    }
    for forget in (False, True):
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE core_event, core_eventcursor")
        if forget:
            forget_statistics(["core_event", "core_eventcursor"])
        for order in early_reader.ORDER.values():
            with readers.index_order():
                assert explain_rows_read(early_reader._NEXT.format(order=order), given) <= 1100


def test_reading_in_order_changes_no_later_plan(last: int) -> None:
    with readers.index_order():
        assert prepared.fetch_all("SHOW enable_sort") == [("off",)]
    assert prepared.fetch_all("SHOW enable_sort") == [("on",)]
