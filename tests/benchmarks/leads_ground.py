"""The rows that the benchmark `leads` works on: organizations with lines enough, and leads by the ten thousand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection

from dispatch.core import clock
from dispatch.leads import redis_queue
from dispatch.leads.models import CallingRule, Campaign, LeadDispatch
from dispatch.leads.redis_queue import ScheduleEntry
from tests.benchmarks.table_statistics import ANALYZED
from tests.benchmarks.whole_provider import TOKEN
from tests.support import factories

ORGANIZATIONS = 4
NUMBERS, LINES = 4, 500  # of each organization
_phones = itertools.count(6_022_000_000)

_INSERT = """
INSERT INTO leads_lead
    (organization_id, campaign_id, phone, customer, external_id, data, status, outcome, reason, wanted_at, due_at,
     attempts, token, worker, last_outcome, created_at)
SELECT %(organization)s, %(campaign)s, '+1' || n, '', '', '{}', 'backlog', '', '', d.due, d.due, 0, 0, '', '',
       now()
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n,
LATERAL (SELECT %(from)s::timestamptz + make_interval(secs => %(step)s::float8 * (n - %(first)s)) AS due) d
RETURNING id, ceil(extract(epoch FROM due_at) * 1000)::bigint
"""


@dataclass(frozen=True)
class Tenant:
    """An organization with one campaign that may call at any hour."""

    organization_id: int
    campaign: Campaign
    api_key: str


def tenants(provider: str, count: int = ORGANIZATIONS) -> list[Tenant]:
    """Fresh organizations whose leads are live; neither lines nor rates are the limit."""
    CallingRule.objects.all().delete()  # the benchmark runs by day and night
    return [_tenant(provider) for _ in range(count)]


def _tenant(provider: str) -> Tenant:
    made = factories.organization()
    LeadDispatch.objects.create(organization=made, mode="live")
    account = factories.account(made, provider=provider, auth_token=TOKEN, calls_per_second=100_000.0)
    pool = factories.pool(made, concurrency=NUMBERS * LINES)
    for _ in range(NUMBERS):
        factories.number(made, account=account, pool=pool, max_channels=LINES)
    campaign = Campaign.objects.create(
        organization=made, pool=pool, code="spring", name="Spring", script="Hello.",
        window_from="00:00", window_until="00:00", keeps_holidays=False,
    )  # fmt: skip
    return Tenant(made.pk, campaign, factories.api_key(made))


def add_leads(tenant: Tenant, count: int, *, due_in_s: float = 0.0, step_s: float = 0.0) -> list[ScheduleEntry]:
    """Rows in the backlog, the first due in `due_in_s`, each further `step_s` later; not yet in the schedule."""
    first = next(_phones)
    for _ in range(count - 1):
        next(_phones)
    given = {
        "organization": tenant.organization_id,
        "campaign": tenant.campaign.pk,
        "first": first,
        "last": first + count - 1,
        "from": clock.now() + timedelta(seconds=due_in_s),
        "step": step_s,
    }
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, given)
        return [
            ScheduleEntry(tenant.campaign.pool_id, lead_id, 1, due_ms) for lead_id, due_ms in cursor.fetchall()
        ]


def phone() -> str:
    """A phone that no other lead has."""
    return f"+1{next(_phones)}"


def settle_down(state: str = ANALYZED) -> None:
    """Do now what PostgreSQL does in the minutes after a million rows were loaded, with or without ANALYZE."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM leads_lead")
        if state == ANALYZED:
            cursor.execute("ANALYZE")
        cursor.execute("CHECKPOINT")


def put(entries: list[ScheduleEntry]) -> None:
    assert redis_queue.enqueue(entries), "Redis did not take the leads"
