"""Offers are looked up by key beside a thousand open jobs, also without statistics.

PostgreSQL then estimates one row for each index, also for a partial one of all pending offers.
"""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from dispatch.core.db.postgres.prepared_statements import Params
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.harness.jobs import Floor
from tests.support.copies import copy_row
from tests.support.database import note_statements
from tests.support.plans import explain_rows_read, forget_statistics

pytestmark = pytest.mark.django_db(transaction=True)

ROWS, MOST_READ = 1000, 50
TABLES = ("jobs_job", "jobs_offer", "technicians_technician")
# Part of the statements that no partial index on a status can serve.
BY_KEY = "status || ''"
LATER = "now() + n * interval '1 ms'"


def numbered(table: str, column: str, after: int) -> str:
    """Return a subquery of the rows that were copied, by number."""
    return f"(SELECT id AS {column}, row_number() OVER (ORDER BY id) AS place FROM {table} WHERE id > {after})"


def fill(floor: Floor, job: Job) -> None:
    """Copy a job that is being offered a thousand times, with its technician and offer."""
    offer = job.offers.get()
    technician, last = offer.technician, Technician.objects.latest("pk").pk
    away = {
        "phone": "'+1602' || 7550000 + n",
        "cell": "1000000 + n",
        "lat": "40",
        "lng": "-100",
        "live_offer_id": "NULL",
    }
    found = [copy_row(technician, ROWS, away), copy_row(job.submission, ROWS)]
    copied = {
        "submission_id": "submission", "customer_phone": "'+1602' || 8550000 + n", "address_key": "'a' || n",
        "created_at": LATER, "next_action_at": f"{LATER} + interval '5 min'",
    }  # fmt: skip
    submissions = f", {numbered('jobs_submission', 'submission', job.submission_id)} s"
    found.append(copy_row(job, ROWS, copied, submissions))
    technicians = f"{numbered('technicians_technician', 'technician', last)} t2 USING (place)"
    pairs = f", {numbered('jobs_job', 'job', job.pk)} j JOIN {technicians}"
    found.append(copy_row(offer, ROWS, {"job_id": "job", "technician_id": "technician"}, pairs))
    assert found == [ROWS] * 4


def empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_submission, telephony_call CASCADE")
    Technician.objects.filter(cell__lt=2_000_000).delete()
    Technician.objects.update(live_offer_id=None, open_jobs=0, planned_times=None)


def rows_read(statement: str, given: Params) -> float:
    """Return how many rows the statement reads now. What it changes is undone."""
    with transaction.atomic():
        read = explain_rows_read(statement, given)  # type: ignore[arg-type]
        transaction.set_rollback(True)
        return read


def test_an_offer_is_looked_up_by_key(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    floor.crew("Ann", "Bob", "Cy")
    bob, cy = (Technician.objects.get(name=name) for name in ("Bob", "Cy"))
    fill(floor, floor.started())
    forget_statistics(TABLES)
    with monkeypatch.context() as patch:
        noted = note_statements(patch)
        job = floor.started(customer_phone="+16025550177", address="12 Elm St")
        floor.rings(bob).answer().press("2")
        floor.until(lambda: job.offers.count() == 2)
        floor.rings(cy).answer().press("1")
        floor.until(lambda: floor.status(job) == "assigned")
    forget_statistics(TABLES)
    explained = {sql: rows_read(sql, given) for sql, given in dict(noted).items() if BY_KEY in sql}
    empty()
    assert len(explained) >= 3, "the offer with its job, the end of an offer, and the pool of calls"
    assert {sql: rows for sql, rows in explained.items() if rows > MOST_READ} == {}
