"""An organization's burst of submissions does not delay the first call of another organization."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.redis.client import client
from dispatch.core.runtime.queues import rq_queue
from tests.harness.jobs import Worker, submitted
from tests.support import factories


def test_a_burst_of_one_organization_delays_no_first_call_of_another(floor):
    (ann,) = floor.crew("Ann")
    other = factories.organization("Burst Plumbing")
    service = factories.service_type(other, "drain")
    for _ in range(40):
        submitted(other, service)
    submission = floor.submit()
    worker = Worker([rq_queue(settings.DISPATCH_QUEUE)], connection=client())
    worker.work(burst=True, with_scheduler=False, logging_level=None, max_jobs=2)
    job = floor.job(submission)
    assert [name for name, _ in floor.offers(job)] == ["Ann"]
    floor.rings(ann)
