"""The bytes and queries of the first view of a full board. `make bench SUITE=console` measures its time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.core import clock
from dispatch.jobs.models import Job, Submission
from tests.console.test_board import Desk
from tests.support import factories as make
from tests.support.page_files import linked_files

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
