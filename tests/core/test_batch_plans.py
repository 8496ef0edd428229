"""A statement that changes a batch of rows chooses it once, even if PostgreSQL takes the table for empty."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.privacy import event_retention
from dispatch.leads import sql as leads_sql
from dispatch.leads.models import Campaign
from dispatch.outbox.models import Attempt, Message
from dispatch.outbox.sql.recovery import DELETE_ENDED
from tests.support import factories
from tests.support.copies import copy_row
from tests.support.plans import explain_rows_read, pretend_empty
from tests.support.tenants import tenant

pytestmark = pytest.mark.django_db

ROWS = 1000
MOST_READ = 6 * ROWS


@pytest.fixture
def organization() -> Organization:
    return factories.organization()


def test_deleting_events_chooses_them_once(organization: Organization) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO core_event (xid, organization_id, kind, subject_type, subject_id, actor_type, actor_label,
                data, at)
            SELECT 1, %s, 'lead.created', 'lead', n, 'system', '', '{}', now() - interval '500 days'
            FROM generate_series(1, %s) n
            """,
            [organization.pk, ROWS],
        )
    pretend_empty(["core_event"])
    given = {
        "organization": organization.pk, "before": clock.now(), "limit": ROWS // 10, "xid": 10, "id": 10**9,
        "audit": ["job"], "audit_before": clock.now(),
    }  # fmt: skip
    assert explain_rows_read(event_retention._deletion(), given) <= MOST_READ


def test_releasing_leads_chooses_them_once(organization: Organization) -> None:
    number = factories.number(organization)
    campaign = Campaign.objects.create(organization=organization, pool=number.pool, code="spring", name="Spring")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO leads_lead (organization_id, campaign_id, phone, customer, external_id, data, status,
                outcome, reason, wanted_at, due_at, attempts, token, worker, last_outcome, created_at)
            SELECT %s, %s, '+1602' || 2550000 + n, '', '', '{}', 'backlog', '', 'campaign_paused',
                now(), now(), 0, 1, '', '', now() FROM generate_series(1, %s) n
            """,
            [organization.pk, campaign.pk, ROWS],
        )
    pretend_empty(["leads_lead"])
    given = {
        "reasons": leads_sql.texts(["campaign_paused"]), "organization": organization.pk, "campaign": campaign.pk,
        "limit": ROWS // 10, "now": clock.now(),
    }  # fmt: skip
    assert explain_rows_read(leads_sql.RELEASE, given) <= MOST_READ


def test_deleting_messages_chooses_them_once() -> None:
    message = tenant("Alphaville").row(Message)
    copy_row(
        message,
        ROWS,
        {
            "status": "'COMPLETED'", "in_flight": "false", "pool_slot": "NULL", "ended_at": "now()",
            "idempotency_key": "NULL", "event_id": "NULL", "lease_until": "NULL", "queued_at": "NULL",
        },
    )  # fmt: skip
    copy_row(Attempt.objects.order_by("pk")[0], ROWS, {"message_id": f"{message.pk} + n"})
    pretend_empty(["outbox_message", "outbox_attempt"])
    tomorrow = clock.now() + timedelta(days=1)
    given = {"organization": message.organization_id, "before": tomorrow, "limit": ROWS // 10}
    assert explain_rows_read(DELETE_ENDED, given) <= MOST_READ
