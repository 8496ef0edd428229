"""The bytes and queries of the first view of a full board. `make bench SUITE=console` measures its time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.console import admin_dashboard
from dispatch.console.board.attention import find_attention
from dispatch.console.board.filters import NO_FILTERS
from dispatch.core import clock
from dispatch.jobs.models import Job, Submission
from tests.console.test_board import Desk
from tests.support import factories as make
from tests.support.copies import copy_row
from tests.support.page_files import linked_files
from tests.support.plans import explain_rows_read, forget_statistics

pytestmark = pytest.mark.django_db

OPEN_JOBS, TECHNICIANS = 2000, 30
MAX_BYTES, MAX_QUERIES = 150_000, 40


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


def fill_board(desk: Desk) -> None:
    """Create open jobs that look different, half of which need a dispatcher."""
    for number in range(TECHNICIANS):
        desk.technician(f"Unit {number}")
    forms = [
        {
            "organization": desk.organization, "customer_name": f"Customer {number}", "service_type": desk.service,
            "customer_phone": make.phone(), "address": f"{number} N {number * 7919 % 997}th St, Phoenix, AZ 85004",
        }
        for number in range(OPEN_JOBS)
    ]  # fmt: skip
    rows = Submission.objects.bulk_create(Submission(form={}, status="processed", **form) for form in forms)
    later = clock.now() + timedelta(hours=5)
    states: list[dict[str, Any]] = [
        {
            "status": "pending",
            "pending_reason": "exhausted",
            "waiting_for": "person",
            "waiting_since": clock.now(),
        },
        {"status": "dispatching", "waiting_for": "start", "next_action_at": later},
    ]
    Job.objects.bulk_create(
        Job(submission=row, lat=make.PHOENIX.lat, lng=make.PHOENIX.lng, **form, **states[number % 2])
        for number, (row, form) in enumerate(zip(rows, forms, strict=True))
    )


def test_first_view_of_2000_open_jobs_is_small_and_needs_few_queries(desk, settings):
    settings.MAP_TILES_URL = "https://tiles.example/{z}/{x}/{y}.png"
    fill_board(desk)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = desk.see()
    assert len(queries) <= MAX_QUERIES, "\n".join(query["sql"][:200] for query in queries)
    assert "leaflet.js" in page, "the map's code is loaded when the map is opened"
    files = linked_files(page)
    assert not [address for address in files if "leaflet" in address]
    sizes = {}
    for address in ("/board/", *files):
        answer = desk.client.get(address, headers={"Accept-Encoding": "gzip"})
        sizes[address] = len(b"".join(answer) if answer.streaming else answer.content)
    assert sum(sizes.values()) <= MAX_BYTES, sizes


@pytest.mark.parametrize("load", [lambda of: find_attention(of, NO_FILTERS), admin_dashboard.cards])
def test_failed_calls_are_found_without_reading_those_of_other_days(desk, load):
    earlier = clock.now() - timedelta(days=2)
    call = desk.failed_call(created_at=earlier, requested_at=earlier)
    copy_row(call, 3000, {
        "subject_id": "100000 + n", "created_at": "t.created_at - n * interval '1 hour'",
        "requested_at": "t.requested_at - n * interval '1 hour'",
    })  # fmt: skip
    desk.failed_call()
    forget_statistics(["telephony_call"])
    with CaptureQueriesContext(connection) as queries:
        load(desk.organization)
    of_calls = [query["sql"] for query in queries if 'FROM "telephony_call"' in query["sql"]]
    assert of_calls
    for statement in of_calls:
        assert explain_rows_read(statement.replace("%", "%%"), []) < 500, statement
