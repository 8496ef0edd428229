"""A batch of due rows divides its places among organizations, and reads few of the due rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.core.db import due_rows, isolation, prepared
from dispatch.jobs.models import Submission
from dispatch.jobs.services.auditor import _DUE_SUBMISSIONS
from notifications.models import Channel, Delivery
from notifications.services import deliveries
from tests.core.test_greedy_organization import received
from tests.core.test_loop_isolation import due_delivery
from tests.support import factories
from tests.support.copies import copy_row
from tests.support.plans import explain_rows_read, forget_statistics

pytestmark = pytest.mark.django_db


def receive(count: int, now: datetime) -> None:
    """Add submissions of one more organization: one that is due in an hour, and `count` that are due."""
    first = received(factories.organization(), now + timedelta(hours=1))
    shuffled = "(n * 7919) %% 3001"
    at = (
        f"t.next_start_at - interval '2 hours' + {shuffled} * interval '1 s' + t.organization_id * interval '1 ms'"
    )
    assert copy_row(first, count, {"next_start_at": at, "idempotency_key": "gen_random_uuid()::text"}) == count


def ids_in_turn(until: datetime, limit: int) -> list[int]:
    with _DUE_SUBMISSIONS.reading_in_order():
        return _DUE_SUBMISSIONS.find_first_ids(_DUE_SUBMISSIONS.find_organizations(until, limit), until, limit)


@pytest.mark.parametrize("counts", [(300,), (200, 1, 1, 40, 3, 0), (2,) * 20])
def test_batch_by_index_is_the_batch_of_all_due_rows_in_turn(counts: tuple[int, ...]) -> None:
    now = clock.now()
    for count in random.sample(counts, len(counts)):
        receive(count, now)
    due = Submission.objects.filter(status="received", next_start_at__lte=now).order_by("next_start_at")
    for limit in (1, 7, 100, 1000):
        assert ids_in_turn(now, limit) == isolation._ids_in_turn(due, limit), limit


def test_batch_reads_few_of_the_due_rows_whatever_postgresql_knows() -> None:
    now = clock.now()
    for count in (3000, 3, 3):
        receive(count, now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_submission")
    analyzed = rows_read(now)
    forget_statistics(["jobs_submission"])
    assert max(*analyzed, *rows_read(now)) <= 30


def rows_read(now: datetime) -> list[float]:
    """Return how many rows the two statements for a batch of 20 read."""
    names = {"table": "jobs_submission", "due": "next_start_at", "condition": "status = 'received'"}
    organizations = list(Submission.objects.order_by().values_list("organization_id", flat=True).distinct())
    first = {"organizations": organizations, "until": now, "since": None, "share": 7}
    prepared.execute(due_rows._IN_ORDER)
    return [
        explain_rows_read(due_rows._ORGANIZATIONS.format(**names), {"until": now, "limit": 20}),
        explain_rows_read(due_rows._FIRST_ROWS.format(**names), first),
    ]


@pytest.mark.parametrize("channels", [deliveries.EMAIL, deliveries.PHONE])
def test_a_batch_of_deliveries_reads_few_of_the_due_ones(channels: tuple[Channel, ...]) -> None:
    """An outage of a mail server makes all emails of an organization due again."""
    wanted = []
    for count in (999, 2):
        for channel in Channel:
            row = due_delivery(channel)(factories.organization())
            copy_row(row, count, {"cycle": "1000 + n"})
            wanted += [row.organization_id] if channel in channels else []
    index, now = deliveries._IN_TURN[channels], clock.now()
    names = {"table": index.table, "due": index.due, "condition": index.condition}
    forget_statistics([index.table])
    prepared.execute(due_rows._IN_ORDER)
    assert explain_rows_read(due_rows._ORGANIZATIONS.format(**names), {"until": now, "limit": 20}) <= 10
    first = {"organizations": wanted, "until": now, "since": None, "share": 7}
    assert explain_rows_read(due_rows._FIRST_ROWS.format(**names), first) <= 7 * len(wanted)
    with index.reading_in_order():
        found = Delivery.objects.filter(pk__in=index.find_first_ids(wanted, now, 20))
    taken = Counter(found.values_list("organization_id", flat=True))
    assert (set(taken), min(taken.values()), taken.total()) == (set(wanted), 3, 20)


def test_organizations_without_due_rows_take_no_place() -> None:
    now = clock.now()
    assert ids_in_turn(now, 10) == []
    receive(0, now)
    assert ids_in_turn(now, 10) == []
    assert len(ids_in_turn(now + timedelta(hours=1), 10)) == 1
