"""Statements about leads read few rows, even from tables that were never analyzed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.leads import eligibility_sql, retention, sql
from dispatch.leads.models import Campaign, CustomerRate, Lead
from dispatch.telephony import retention as telephony_retention
from dispatch.telephony import sql as telephony_sql
from tests.support import factories
from tests.support.plans import explain_rows_read, forget_statistics

pytestmark = pytest.mark.django_db

ROWS = 4000
TABLES = ("leads_lead", "telephony_call", "leads_campaign", "leads_customerrate")


@pytest.fixture
def campaign() -> Campaign:
    """A campaign of an organization with thousands of ended calls and leads, and another with few."""
    organization = factories.organization()
    number = factories.number(organization)
    campaign = Campaign.objects.create(
        organization=organization, pool=number.pool, code="spring", name="Spring", script="Hi", customer="acme"
    )
    CustomerRate.objects.create(organization=organization, customer="rare", most=5, per_s=3600)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO leads_lead (organization_id, campaign_id, phone, customer, external_id, data, status,
                outcome, reason, wanted_at, due_at, attempts, token, worker, last_outcome, created_at, finished_at)
            SELECT %(organization)s, %(campaign)s, '+1602' || 2550000 + n, '', '', '{}', 'finished', 'answered',
                '', now(), now(), 1, 1, '', '', now(), now() FROM generate_series(1, %(rows)s) n
            """,
            {"organization": organization.pk, "campaign": campaign.pk, "rows": ROWS},
        )
        cursor.execute(
            """
            INSERT INTO telephony_call (organization_id, purpose, subject_id, attempt, account_id, number_id,
                pool_id, line_slot, pool_slot, to_phone, from_phone, ring_timeout_s, time_limit_s, detect_machine,
                status, not_before, place_by, requested_at, created_at, ended_at, empty_listings, last_sequence,
                answered_by, keys_pressed, context, error_code, error_message, customer)
            SELECT %(organization)s, 'lead', l.id, 1, %(account)s, %(number)s, %(pool)s, 1, 1, l.phone, l.phone,
                30, 300, false, 'completed', now(), now(), now(), now(), now(), 0, -1, '', '', '{}', '', '', 'acme'
            FROM leads_lead l WHERE l.campaign_id = %(campaign)s
            """,
            {
                "organization": organization.pk, "account": number.account_id, "number": number.pk,
                "pool": number.pool_id, "campaign": campaign.pk,
            },
        )  # fmt: skip
    forget_statistics(TABLES)
    return campaign


def rows_read(statement: str, given: dict[str, Any] | list[Any]) -> float:
    """Run the statement with a generic plan and without statistics. Return how many rows it read."""
    prepared.prefer_index_plans()
    return explain_rows_read(statement, given)


def pairs(campaign: Campaign, count: int = 50) -> dict[str, str]:
    phones = Lead.objects.filter(campaign=campaign).order_by("pk").values_list("phone", flat=True)[:count]
    return {
        "organizations": prepared.integers([campaign.organization_id] * count),
        "phones": prepared.texts(map(str, phones)),
    }


def test_calls_of_the_rolling_day_are_looked_up_by_phone(campaign: Campaign) -> None:
    since = clock.now() - timedelta(hours=24)
    assert rows_read(eligibility_sql.DIALED, {**pairs(campaign), "since": since}) <= 200


def test_exclusions_and_open_calls_are_looked_up_by_phone(campaign: Campaign) -> None:
    assert rows_read(eligibility_sql.REFUSED, pairs(campaign)) <= 200
    assert rows_read(telephony_sql.BUSY_PHONES, pairs(campaign)) <= 200


def test_the_rate_of_a_rare_customer_reads_only_its_calls(campaign: Campaign) -> None:
    ids = list(CustomerRate.objects.values_list("pk", flat=True))
    assert rows_read(eligibility_sql.SPENT, [clock.now(), ids]) <= 20


def test_the_queue_of_a_rate_reads_only_leads_that_wait_for_it(campaign: Campaign) -> None:
    for _ in range(30):
        campaign.leads.create(
            organization=campaign.organization, phone=factories.phone(), reason="customer_rate", customer="rare"
        )
    ids = list(CustomerRate.objects.values_list("pk", flat=True))
    batch = [[campaign.organization_id], ["rare"], [campaign.pk]]
    assert rows_read(eligibility_sql.QUEUED, [ids, *batch, clock.now()]) <= 20


def add_waiting(campaign: Campaign, *customers: str, count: int = ROWS) -> None:
    """Add leads that wait for the rates of these customers, in turn."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO leads_lead (organization_id, campaign_id, phone, customer, external_id, data, status,
                outcome, reason, wanted_at, due_at, attempts, token, worker, last_outcome, created_at)
            SELECT %(organization)s, %(campaign)s, '+1602' || 3550000 + n,
                (%(customers)s::text[])[n %% cardinality(%(customers)s::text[]) + 1], '', '{}', 'backlog', '',
                'customer_rate', now(), now() + make_interval(secs => n), 0, 0, '', '', now()
            FROM generate_series(1, %(count)s) n
            """,
            {
                "organization": campaign.organization_id, "campaign": campaign.pk, "customers": list(customers),
                "count": count,
            },
        )  # fmt: skip


def test_the_queue_of_a_rare_customer_does_not_read_that_of_another(campaign: Campaign) -> None:
    add_waiting(campaign, "acme")
    ids = list(CustomerRate.objects.values_list("pk", flat=True))
    batch = [[campaign.organization_id], ["rare"], [campaign.pk]]
    assert rows_read(eligibility_sql.QUEUED, [ids, *batch, clock.now()]) <= 1100


def test_the_queues_of_many_customers_are_read_once(campaign: Campaign) -> None:
    names = [f"customer-{n}" for n in range(20)]
    organization = campaign.organization
    CustomerRate.objects.bulk_create(
        CustomerRate(organization=organization, customer=name, most=2, per_s=3600) for name in names
    )
    add_waiting(campaign, "acme", count=900)
    add_waiting(campaign, *names[:10], count=100)
    batch = [[organization.pk] * len(names), names, [campaign.pk] * len(names)]
    assert rows_read(eligibility_sql.QUEUED_OF_MANY, [*batch, clock.now(), clock.now()]) <= 1500


def test_leads_are_locked_by_id(campaign: Campaign) -> None:
    ids = Lead.objects.values_list("pk", flat=True)[:50]
    assert rows_read(sql.LOCK, {"ids": prepared.integers(ids)}) <= 200
    claim = {"ids": prepared.integers(ids), "tokens": prepared.integers([2] * 50), "worker": "w"}
    assert rows_read(sql.CLAIM, {**claim, "now": clock.now()}) <= 300


def test_held_leads_are_found_without_reading_every_campaign(campaign: Campaign) -> None:
    fields = {"organization": campaign.organization, "reason": "campaign_paused"}
    for _ in range(30):
        campaign.leads.create(phone=factories.phone(), **fields)
    assert rows_read(sql.HELD_PAIRS, {}) <= 10
    assert sql.fetch_all(sql.HELD_PAIRS) == [(campaign.pk, "campaign_paused")]


def test_the_list_of_an_organization_reads_no_foreign_leads(campaign: Campaign) -> None:
    other = factories.organization()
    listed = Lead.objects.of(other.pk).order_by("-id")[:51]
    assert rows_read(*listed.query.sql_with_params()) <= 51  # type: ignore[arg-type]


def test_retention_of_an_organization_reads_no_foreign_rows(campaign: Campaign) -> None:
    other = factories.organization()
    for delete in (retention.delete_leads, telephony_retention.delete_calls):
        with CaptureQueriesContext(connection) as captured:
            assert delete(other.pk, clock.now(), 100) == 0
        selects = [query["sql"] for query in captured.captured_queries if query["sql"].startswith("SELECT")]
        for statement in selects:
            assert rows_read(statement.replace("%", "%%"), []) <= 1, statement
