"""No loop reads a whole table of ended rows when nothing is due, even if PostgreSQL never analyzed the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.loops import Loop, all_loops
from dispatch.jobs import sql
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import recovery
from tests.support.copies import copy_row
from tests.support.plans import forget_statistics
from tests.support.tenants import tenant

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 1500
MOST_READ = ROWS // 3
_JOB = ", (SELECT id AS job, row_number() OVER (ORDER BY id) AS place FROM jobs_job) jobs"
# For each table, the values with which a copy of a tenant's row is over, where `n` is the number of the copy, and
# another source of rows. Tables are filled in this order.
ENDED: dict[str, tuple[str, dict[str, str]]] = {
    "jobs.Submission": ("", {"status": "'processed'", "next_start_at": "NULL", "idempotency_key": "'k' || n"}),
    "jobs.Job": (
        ", (SELECT id AS submission, row_number() OVER (ORDER BY id) AS place FROM jobs_submission"
        " WHERE id NOT IN (SELECT submission_id FROM jobs_job)) submissions",
        {
            "submission_id": "submission", "status": "CASE WHEN n %% 5 = 0 THEN 'pending' ELSE 'completed' END",
            "pending_reason": "CASE WHEN n %% 5 = 0 THEN 'exhausted' ELSE '' END", "next_action_at": "NULL",
            "attention_at": "NULL", "paused_at": "NULL", "fill_at": "NULL", "waiting_for": "''",
            "is_trial": "false", "ended_at": "CASE WHEN n %% 5 <> 0 THEN now() END",
        },
    ),
    "jobs.Candidate": (_JOB, {"job_id": "job", "rank": "n + 10"}),
    "jobs.Offer": (_JOB, {"job_id": "job", "attempt": "9", "status": "'declined'", "settled_at": "now()"}),
    "jobs.TechnicianNotice": ("", {"status": "'reached'", "next_action_at": "NULL"}),
    "jobs.CustomerText": (_JOB, {"job_id": "job"}),
    "technicians.Technician": (
        "", {"phone": "'+1602' || 7550000 + n", "open_jobs": "0", "live_offer_id": "NULL", "is_active": "false"},
    ),
    "telephony.Call": (
        "",
        {
            "purpose": "'offer'", "subject_id": "1000000 + n", "status": "'completed'", "sid": "'CA' || n",
            "ended_at": "now()", "price": "1", "price_unit": "'USD'", "hang_up_at": "NULL",
            "requested_at": "now()",
        },
    ),
    "telephony.CallEvent": ("", {"key": "'k' || n", "next_action_at": "NULL"}),
    "telephony.InboundCall": (
        "", {"sid": "'CB' || n", "status": "'completed'", "ended_at": "now()", "price": "1", "price_unit": "'USD'",
             "next_action_at": "NULL"},
    ),
    "telephony.Text": (
        "",
        {
            "subject_id": "1000000 + n", "direction": "'out'", "purpose": "'test'", "status": "'delivered'",
            "sid": "'SM' || n", "ended_at": "now()", "handled_at": "now()", "price": "1", "price_unit": "'USD'",
        },
    ),
    "leads.Lead": (
        "",
        {
            "phone": "'+1602' || 8550000 + n", "external_id": "'e' || n", "status": "'finished'",
            "outcome": "'answered'", "finished_at": "now()", "reason": "''",
        },
    ),
    "outbox.Message": (
        "",
        {
            "status": "'COMPLETED'", "in_flight": "false", "pool_slot": "NULL", "ended_at": "now()",
            "idempotency_key": "NULL", "event_id": "NULL", "lease_until": "NULL", "queued_at": "NULL",
        },
    ),
    "outbox.Attempt": ("", {"number": "n + 10"}),
    "schedules.Schedule": ("", {"status": "'ended'", "next_at": "NULL", "bulk_id": "NULL", "bulk_row": "NULL"}),
    "schedules.Run": (
        "", {"number": "n + 10", "status": "'succeeded'", "ended_at": "now()", "lease_until": "NULL"},
    ),
    "notifications.Notification": ("", {"event_id": "1000000 + n", "settled_at": "now()"}),
    "notifications.Delivery": ("", {"cycle": "1000 + n", "status": "'sent'", "next_attempt_at": "NULL"}),
    "notifications.Alert": (
        "", {"event_id": "1000000 + n", "status": "'settled'", "next_action_at": "NULL", "next_repeat_at": "NULL"},
    ),
}  # fmt: skip
# Loops whose work is to read rows that are not due, and why.
READS_ALL = {
    "retention": "it visits every organization and kind in turn",
    "number_health": "it judges numbers by their calls of the last days",
    "spend_caps": "it adds up the prices of the month",
    "jobs_technician_repair": "it compares the counts of all technicians",
}
TABLES = [apps.get_model(label)._meta.db_table for label in ENDED]


def fill(label: str) -> None:
    """Copy one row of the model ROWS times, as ended rows."""
    source, values = ENDED[label]
    made = copy_row(apps.get_model(label)._default_manager.order_by("pk")[0], ROWS, values, source)
    assert made >= ROWS * 0.9, f"{label}: {made} rows"


@pytest.fixture
def ended_rows() -> Iterator[None]:
    """Hundreds of ended rows in each table, of which PostgreSQL knows nothing."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")  # pages that earlier tests left change the plans
    tenant("Alphaville")
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    for loop in loops():
        loop.step()  # what is due of the tenant's rows is done once
    for label in ENDED:
        fill(label)
    forget_statistics(TABLES)
    yield
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def loops() -> list[Loop]:
    return [loop for loop in all_loops() if isinstance(loop, Loop) and loop.name not in READS_ALL]


def rows_read() -> dict[str, int]:
    """Return how many rows all sessions have read of each table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"
            " WHERE relname = ANY(%s)",
            [TABLES],
        )
        return dict(cursor.fetchall())


@pytest.mark.usefixtures("ended_rows")
def test_the_auditor_looks_up_the_calls_of_pending_offers() -> None:
    offer = Offer.objects.filter(status="declined")[0]
    Offer.objects.filter(pk=offer.pk).update(status="pending", settled_at=None)
    before = rows_read()
    sql.silent_offer_calls(10)
    assert rows_read()["telephony_call"] - before["telephony_call"] <= MOST_READ


@pytest.mark.usefixtures("ended_rows")
def test_no_loop_reads_a_table_of_ended_rows() -> None:
    found: dict[str, dict[str, int]] = {}

    def read_during(name: str, step: Any) -> None:
        before = rows_read()
        step()
        read = {table: count - before[table] for table, count in rows_read().items()}
        if most := {table: count for table, count in read.items() if count > MOST_READ}:
            found[name] = most

    checks = DueChecks(loops())
    names = [loop.name for loop in loops() if loop.due]
    checks.find_due(names)
    read_during("conditions", lambda: checks.find_due(names))
    for loop in loops():
        loop.step()  # prepares statements, and does what the filling made due
        read_during(loop.name, loop.step)
    organization_id = Job.objects.values_list("organization_id", flat=True)[0]
    read_during("outage over", lambda: recovery.resume_after_outage(organization_id))
    assert found == {}
