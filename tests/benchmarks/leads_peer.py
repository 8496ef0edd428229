"""The same work on plain RQ or Celery, beside which ours is measured: a job for each lead.

    python -m tests.benchmarks.leads_peer rq | celery NAME | celery-send LEAD…

Each job does what one lead takes, with Django's ORM as one would write it: the row locked, the gates asked, the
Call and the Event written; the provider asked; Call, lead and Event written again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import django

QUEUE = "leads-peer"
LINES = 500
THREADS = 8


def call(lead_id: int) -> None:
    from datetime import timedelta

    from django.db import transaction

    from dispatch.capacity.models import OutboundNumber
    from dispatch.core import clock, events
    from dispatch.leads import eligibility
    from dispatch.leads.models import Lead
    from dispatch.leads.rules import eligibility as eligibility_rules
    from dispatch.leads.rules.retries import Go, LeadFacts
    from dispatch.telephony import providers
    from dispatch.telephony.models import Call
    from dispatch.telephony.providers.base import Submitted
    from dispatch.telephony.services import bulk

    with transaction.atomic():
        lead = Lead.objects.select_for_update(of=("self",)).select_related("campaign").get(pk=lead_id)
        now = clock.now()
        facts = LeadFacts(
            lead.pk, lead.organization_id, lead.campaign_id, str(lead.phone), lead.lat, lead.lng, lead.customer,
            lead.external_id, lead.attempts, lead.token, lead.wanted_at, lead.due_at, lead.reason,
        )  # fmt: skip
        context = eligibility.load_batch([facts], now)
        campaign = context.campaigns[lead.campaign_id]
        if not isinstance(eligibility_rules.check_eligibility(facts, campaign, context), Go):
            return
        number = OutboundNumber.objects.select_related("account").filter(pool_id=campaign.pool_id).first()
        assert number is not None
        slot = lead.pk % LINES + 1
        made = Call.objects.create(
            organization_id=lead.organization_id, purpose="lead", subject_id=lead.pk, attempt=1,
            account=number.account, number=number, pool_id=campaign.pool_id, line_slot=slot, pool_slot=slot,
            to_phone=lead.phone, from_phone=number.phone, status="requesting", requested_at=now,
            place_by=now + timedelta(seconds=5), send_by=now + timedelta(seconds=5),
        )  # fmt: skip
        lead.status, lead.token, lead.attempts, lead.claimed_at = "processing", 1, 1, now
        lead.save(update_fields=["status", "token", "attempts", "claimed_at"])
        events.append(lead.organization_id, "lead.processing", lead.pk, call=made.pk)
    wanted = bulk.NewCall(
        lead.organization_id, lead.pk, 1, str(lead.phone), number.account_id, number.pk, str(number.phone), slot,
        campaign.pool_id, slot, campaign.ring_timeout_s, campaign.time_limit_s, False, {},
    )  # fmt: skip
    order = bulk.build_request(wanted, made.pk, number.account.provider, 5.0)
    outcome = providers.for_account(number.account).place(order)
    assert isinstance(outcome, Submitted)
    with transaction.atomic():
        now = clock.now()
        made.status, made.sid, made.submitted_at, made.ended_at = outcome.status, outcome.sid, now, now
        made.save(update_fields=["status", "sid", "submitted_at", "ended_at"])
        lead.status, lead.outcome, lead.finished_at = "finished", "answered", now
        lead.save(update_fields=["status", "outcome", "finished_at"])
        events.append(lead.organization_id, "lead.finished", lead.pk, outcome="answered", call=made.pk)


def work_by_rq() -> None:
    """One SimpleWorker, until it is stopped."""
    from rq import Queue, SimpleWorker
    from rq.serializers import JSONSerializer

    from dispatch.core.redis.client import connect

    connection = connect(socket_timeout=500)
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    SimpleWorker([queue], connection=connection, serializer=JSONSerializer).work(logging_level=None)


def celery_app() -> Any:
    """An app with the one task, on our Redis. Its packages come after ours, which they must not replace."""
    sys.path.append(os.environ["BENCH_PEERS"])
    from celery import Celery
    from django.conf import settings

    url = settings.REDIS_URL
    app = Celery("leads", broker=f"redis+socket://{urlsplit(url).path}" if url.startswith("unix") else url)
    app.conf.update(task_default_queue=QUEUE, task_ignore_result=True, worker_prefetch_multiplier=16)
    app.task(name="call", ignore_result=True)(call)
    return app


def work_by_celery(name: str) -> None:
    """One worker with threads, until it is stopped."""
    celery_app().worker_main(
        ["worker", "--pool", "threads", "--concurrency", str(THREADS), "--loglevel", "ERROR",
         "--hostname", f"{name}@leads", "--without-gossip", "--without-mingle"]
    )  # fmt: skip


def send_to_celery(lead_ids: Sequence[int]) -> None:
    app = celery_app()
    for lead_id in lead_ids:
        app.send_task("call", args=(lead_id,))


if __name__ == "__main__":
    django.setup()
    if sys.argv[1] == "rq":
        work_by_rq()
    elif sys.argv[1] == "celery":
        work_by_celery(sys.argv[2])
    else:
        send_to_celery([int(lead_id) for lead_id in sys.argv[2:]])
