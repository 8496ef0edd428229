"""An organization's burst of submissions does not delay the calls of another organization."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.redis.client import client
from dispatch.core.runtime.queues import rq_queue
from dispatch.jobs import services
from dispatch.jobs.models import DispatchPolicy, Job
from dispatch.jobs.services import auditor
from tests.harness.jobs import Floor, Worker, submitted
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


@pytest.fixture
def crowd(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Five jobs that wait for a line of a paused pool. At most two of them are tried in vain in a pass."""
    monkeypatch.setattr(auditor, "MAX_TRIES_FOR_A_POOL", 2)
    floor.crew("Ann", "Bob", "Cid", "Dan", "Eve", "Fay")
    DispatchPool.objects.update(is_paused=True)
    jobs = [floor.started() for _ in range(5)]
    assert {floor.job(job).waiting_for for job in jobs} == {"line"}
    clock.travel(16)
    return jobs


def tried_in(step, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the jobs that a pass tries."""
    tried: list[int] = []
    real = auditor._advance_job

    def advance(pk, *args):
        tried.append(pk)
        return real(pk, *args)

    with monkeypatch.context() as patch:
        patch.setattr(auditor, "_advance_job", advance)
        step()
    return tried


def test_jobs_behind_those_that_wait_for_a_line_are_left_to_the_auditor(floor, crowd, monkeypatch):
    assert tried_in(services.move_on_waiting, monkeypatch) == [job.pk for job in crowd[:2]]
    assert set(tried_in(auditor.audit, monkeypatch)) == {job.pk for job in crowd[2:]}


def test_jobs_of_another_pool_go_although_many_wait_before_them(floor, crowd, monkeypatch):
    pool = factories.pool(floor.organization)
    factories.number(floor.organization, pool=pool)
    drain = factories.service_type(floor.organization, "drain")
    DispatchPolicy.objects.create(organization=floor.organization, service_type=drain, call_pool=pool)
    DispatchPool.objects.filter(pk=pool.pk).update(is_paused=True)
    submission = submitted(floor.organization, drain)
    floor.work()
    other = floor.job(submission)
    assert other.line_pool_id == pool.pk
    DispatchPool.objects.filter(pk=pool.pk).update(is_paused=False)
    clock.travel(16)
    tried = tried_in(services.move_on_waiting, monkeypatch)
    assert tried == [crowd[0].pk, crowd[1].pk, other.pk]
    assert [status for _, status in floor.offers(other)] == ["pending"]


def test_all_jobs_get_the_lines_that_are_free_in_one_pass_in_their_order(floor, crowd, monkeypatch):
    DispatchPool.objects.update(is_paused=False)
    assert tried_in(services.move_on_waiting, monkeypatch) == [job.pk for job in crowd]
    assert [len(floor.offers(job)) for job in crowd] == [1] * 5
    made = sorted(crowd, key=lambda job: job.offers.get().pk)
    assert made == crowd


def test_an_emergency_gets_the_only_free_line_before_many_that_wait(floor, crowd):
    emergency = floor.started(priority=1)
    DispatchPool.objects.update(is_paused=False)
    OutboundNumber.objects.update(max_channels=1)
    clock.travel(16)
    services.move_on_waiting()
    assert [len(floor.offers(job)) for job in (emergency, *crowd)] == [1, 0, 0, 0, 0, 0]


def test_a_job_whose_wait_is_over_is_tried_although_many_wait_before_it(floor, crowd):
    Job.objects.filter(pk=crowd[-1].pk).update(line_wait_until=clock.now() - timedelta(seconds=1))
    services.move_on_waiting()
    assert floor.job(crowd[-1]).pending_reason == "no_line"
