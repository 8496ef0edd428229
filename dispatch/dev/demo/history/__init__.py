"""Fill the empty demo organization with 45 days of history and a day in progress.

`fill` writes it once, with COPY, in a few seconds. Names and numbers depend on a fixed seed, times on the day.
Nothing in the history is due, and its events have a transaction id below the cursor of every reader, so that no
loop, alert, call or text follows from them. Only open work continues: the campaigns call, and the schedules run.

`customers` and `requests` draw the people and what they need; `crew` simulates who accepts; `rows` writes rows in
bulk. `jobs`, `calls`, `open_jobs`, `notes`, `campaigns`, `deliveries` and `runs` write the rows of one concern
each.
"""

from __future__ import annotations

import random
from datetime import datetime

from django.db import transaction

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.dev.demo.history import campaigns, deliveries, jobs, open_jobs, runs
from dispatch.dev.demo.history.rows import Batch
from dispatch.dev.demo.receiver import PATH as RECEIVER_PATH
from dispatch.jobs.models import Submission
from dispatch.leads.models import Campaign
from dispatch.outbox.models import Endpoint
from dispatch.outbox.services.endpoints import change_endpoint
from dispatch.schedules.models import Schedule

DAYS = 45
SEED = "desert-air"


def fill(organization: Organization, receiver_url: str) -> bool:
    """Write the history of an empty organization. Return False, and change nothing, if it has any work already.

    `receiver_url`: where its endpoints deliver messages.
    """
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if _has_work(organization):
            return False
        _write(organization, receiver_url, clock.now())
    return True


def _write(organization: Organization, receiver_url: str, now: datetime) -> None:
    batch = Batch(organization)
    past = jobs.write_past_jobs(batch, random.Random(f"{SEED} jobs"), now, DAYS)
    open_jobs.write_open_jobs(batch, random.Random(f"{SEED} today"), now)
    campaigns.write_campaigns(batch, random.Random(f"{SEED} leads"), now)
    deliveries.write_deliveries(batch, random.Random(f"{SEED} messages"), now, past, receiver_url)
    runs.write_schedules(batch, random.Random(f"{SEED} runs"), now, DAYS)
    batch.write()


def move_receiver(organization: Organization, receiver_url: str) -> None:
    """Point the demo's endpoints to `receiver_url`, if it has another port now."""
    for endpoint in Endpoint.objects.of(organization).filter(name__in=(deliveries.CRM, deliveries.BILLING)):
        head, slash, tail = endpoint.url.partition(RECEIVER_PATH)
        if slash and f"{head}{slash}" != receiver_url:
            change_endpoint(endpoint.pk, {"url": f"{receiver_url}{tail}"}, actor=SYSTEM)


def _has_work(organization: Organization) -> bool:
    return any(model.objects.of(organization).exists() for model in (Submission, Campaign, Endpoint, Schedule))
