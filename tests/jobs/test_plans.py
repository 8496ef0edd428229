"""The loops of jobs read only the jobs that they look for, even if PostgreSQL never analyzed the table."""

from __future__ import annotations

import pytest
from django.db import connection

from accounts.models import Organization
from dispatch.core.db import prepared
from dispatch.jobs import queries
from dispatch.jobs.models import Job
from tests.support.copies import copy_row
from tests.support.plans import explain_rows_read, forget_statistics
from tests.support.tenants import tenant

pytestmark = pytest.mark.django_db

ROWS = 500
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
