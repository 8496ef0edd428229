"""The loops of jobs read only the jobs that they look for, even if PostgreSQL never analyzed the table."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta

import pytest
from django.db import connection

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.jobs import queries, sql
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import leaving
from dispatch.technicians.models import Technician
from tests.core.test_loop_isolation import make_job
from tests.support import factories as make
from tests.support.copies import copy_row
from tests.support.plans import count_rows, explain_rows_read, forget_statistics, pretend_empty
from tests.support.tenants import tenant

pytestmark = pytest.mark.django_db

ROWS = 500
WAITING, POLLED = 10_000, 200
_SUBMISSION = (
    ", (SELECT id AS submission, row_number() OVER (ORDER BY id) AS place FROM jobs_submission"
    " WHERE id NOT IN (SELECT submission_id FROM jobs_job)) submissions"
)


@pytest.fixture
def organization() -> Organization:
    """An organization with hundreds of jobs that wait for a person or are over."""
    found = tenant("Alphaville")
    job = found.row(Job)
    copy_row(job.submission, ROWS, {"idempotency_key": "'k' || n"})
    ended = {
        "submission_id": "submission", "status": "CASE WHEN n %% 2 = 0 THEN 'pending' ELSE 'completed' END",
        "pending_reason": "CASE WHEN n %% 2 = 0 THEN 'exhausted' ELSE '' END", "next_action_at": "NULL",
        "waiting_for": "''", "ended_at": "CASE WHEN n %% 2 <> 0 THEN now() END",
    }  # fmt: skip
    assert copy_row(job, ROWS, ended, _SUBMISSION) == ROWS
    return found.organization


def test_jobs_to_resume_are_found_among_those_that_wait_for_a_person(organization: Organization) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        # What rows of earlier tests left in the index would make it look more expensive than a new one.
        cursor.execute("REINDEX INDEX job_pending_for")
        cursor.execute("CREATE INDEX job_tempting ON jobs_job (organization_id) WHERE status = 'pending'")
    forget_statistics(["jobs_job"])
    prepared.prefer_index_plans()
    read = {}
    for name, jobs in {
        "outage over": queries.find_pending_jobs(["provider_down", "account_refused"], organization.pk),
        "cap lifted": queries.find_pending_jobs(["spend_cap"], organization.pk),
        "left behind": queries.find_pending_jobs(["provider_down", "account_refused"], outage_ended=True),
    }.items():
        statement, given = jobs.values_list("pk").query.sql_with_params()
        read[name] = explain_rows_read(statement, given)
    assert max(read.values()) <= 10, read


@pytest.fixture
def waiting() -> list[Job]:
    """The first and the last of thousands of jobs that wait for a line; only the last of them are being polled."""
    organization = make.organization()
    pool, now = make.number(organization).pool, clock.now()
    job = make_job(
        organization, status="dispatching", waiting_for="line", waiting_since=now, line_pool=pool,
        next_action_at=now - timedelta(minutes=1),
    )  # fmt: skip
    copy_row(job.submission, WAITING)
    last = f"n > {WAITING - POLLED}"
    copied = {
        "submission_id": "submission", "step_token": "gen_random_uuid()",
        "next_action_at": f"CASE WHEN {last} THEN now() + interval '1 minute' ELSE t.next_action_at END",
    }  # fmt: skip
    assert copy_row(job, WAITING, copied, _SUBMISSION) == WAITING
    return [job, Job.objects.latest("pk")]


def analyze(tables: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {', '.join(tables)}")


def test_a_try_reads_only_the_polled_ones_of_thousands_that_wait_for_a_line(waiting: list[Job]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    read = {}
    states = (forget_statistics, pretend_empty, analyze)
    for state, plans in itertools.product(states, ("auto", "force_generic_plan", "force_custom_plan")):
        state(["jobs_job", "jobs_offer"])
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL plan_cache_mode = {plans}")
            cursor.execute("DISCARD PLANS")
        for place, job in zip(("first", "last"), waiting, strict=True):
            given = sql._pool_parameters(job, clock.now())
            plan = prepared.fetch_all("EXPLAIN (ANALYZE, FORMAT JSON) " + sql._CALL_POOL, given)[0][0]
            plan = json.loads(plan) if isinstance(plan, str) else plan
            read[state.__name__, plans, place] = count_rows(plan[0]["Plan"])
    assert max(read.values()) < 2 * POLLED, read


def test_offers_of_inactive_technicians_are_found_without_reading_all_technicians() -> None:
    found = tenant("Alphaville")
    offer, technician = found.row(Offer), found.row(Technician)
    away = {
        "phone": "'+1602' || 7550000 + n", "cell": "1000000 + n", "lat": "40", "lng": "-100",
        "live_offer_id": "NULL", "is_active": "n %% 2 = 0",
    }  # fmt: skip
    assert copy_row(technician, ROWS * 10, away) == ROWS * 10
    Offer.objects.filter(pk=offer.pk).update(status="pending", technician=Technician.objects.latest("pk"))
    Technician.objects.filter(offers=offer).update(is_active=False)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    tables = ["jobs_offer", "technicians_technician"]
    statement, given = leaving.find_inactive_offers().values_list("pk").query.sql_with_params()
    read = {}
    for state in (forget_statistics, analyze):
        state(tables)
        read[state.__name__] = explain_rows_read(statement, given)
    assert list(leaving.find_inactive_offers()) == [offer]
    assert max(read.values()) < 50, read
