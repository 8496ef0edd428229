"""The console's Leads page for an organization with 1,000,000 leads, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator

import requests
from django.conf import settings
from django.db import connection
from django.test import Client

from accounts.models import Organization
from tests.benchmarks import Result, jobs_site, leads_ground
from tests.benchmarks.table_statistics import ANALYZED, UNANALYZED, switch_autovacuum_off
from tests.support import factories

LEADS, VIEWS = 1_000_000, 9
# A fifth has ended, most of it well; of those that wait, one in ten says why.
_MIXED = """
UPDATE leads_lead SET status = 'finished', finished_at = now(), due_at = now() - interval '1 hour',
    outcome = (ARRAY['answered', 'no_answer', 'busy', 'voicemail', 'answered'])[1 + id %% 5]
WHERE id %% 5 = 0
"""
_WAITING = """
UPDATE leads_lead SET reason = (ARRAY['outside_window', 'retry', 'attempts_24h'])[1 + id %% 3],
    due_at = now() + interval '8 hours'
WHERE id %% 10 = 1
"""


def run() -> Iterator[Result]:
    switch_autovacuum_off()
    tenants = leads_ground.tenants("noop-ends", 2)
    for start in range(0, LEADS, 100_000):
        leads_ground.add_leads(tenants[0], min(100_000, LEADS - start), due_in_s=start / 20, step_s=0.05)
    leads_ground.add_leads(tenants[1], 1000, due_in_s=60.0, step_s=60.0)
    with connection.cursor() as cursor:
        cursor.execute(_MIXED, [])
        cursor.execute(_WAITING, [])
    with jobs_site.running(dispatcher=False) as site:
        for state in (UNANALYZED, ANALYZED):
            leads_ground.settle_down(state)
            for tenant, name in zip(tenants, (f"{LEADS:,} leads", "1,000 leads"), strict=True):
                session = _signed_in(Organization.objects.get(pk=tenant.organization_id))
                first, again = _times(f"{site.base_url}/leads/", session)
                yield Result(f"the Leads page, {name}, {state}, first view", first, "ms", "<= 1000")
                yield Result(f"the Leads page, {name}, {state}, median of {VIEWS} more", again, "ms", "<= 500")


def _signed_in(organization: Organization) -> dict[str, str]:
    client = Client()
    client.force_login(factories.dispatcher(organization), backend="django.contrib.auth.backends.ModelBackend")
    return {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}


def _times(url: str, session: dict[str, str]) -> tuple[float, float]:
    """(ms of the first view, median of the others)."""
    taken = []
    with requests.Session() as browser:
        for _ in range(VIEWS + 1):
            began = time.perf_counter()
            answer = browser.get(url, cookies=session, timeout=60, allow_redirects=False)
            taken.append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200, (answer.status_code, answer.headers)
    return taken[0], sorted(taken[1:])[VIEWS // 2]
