"""Organizations take turns on the RQ queues: one organization's burst delays no other's first job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings
from rq.job import Job
from rq.serializers import JSONSerializer

from dispatch.core import clock
from dispatch.core.redis.client import QUEUES, client
from dispatch.core.runtime.queues import FIRST_JOBS, enqueue, read_queue, rq_queue
from dispatch.core.runtime.rq_worker import _Scheduler

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE, LATER = settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE
LEAVE = "tests.core.jobs.leave"


def put(name: str, *, by: int | None = None) -> None:
    enqueue(QUEUE, LEAVE, name, organization_id=by)


def names(queue: str = QUEUE) -> list[str]:
    return [job.args[0] for job in rq_queue(queue).get_jobs()]


def take(count: int = 1) -> list[str]:
    """The names of the next jobs, as a worker takes them."""
    taken = []
    for _ in range(count):
        job_id = client(QUEUES).lpop(rq_queue(QUEUE).key).decode()
        taken.append(Job.fetch(job_id, client(QUEUES), JSONSerializer).args[0])
    return taken


def test_a_burst_of_one_organization_delays_no_other_organization() -> None:
    for number in range(50):
        put(f"a{number}", by=1)
    put("b0", by=2)
    put("b1", by=2)
    put("c0", by=3)
    assert names()[:6] == ["a0", "b0", "c0", "a1", "b1", "a2"]
    assert [name for name in names() if name[0] == "a"] == [f"a{number}" for number in range(50)]


def test_an_organization_that_comes_later_starts_at_the_head() -> None:
    for number in range(20):
        put(f"a{number}", by=1)
    assert take(10) == [f"a{number}" for number in range(10)]
    put("b0", by=2)
    assert names()[:2] == ["a10", "b0"]
    put("a20", by=1)
    assert names()[-1] == "a20"


def test_two_bursts_share_the_queue_in_turns() -> None:
    for organization in (1, 2):
        for number in range(30):
            put(f"{organization}.{number}", by=organization)
    taken = take(60)
    assert taken == [f"{organization}.{number}" for number in range(30) for organization in (1, 2)]


def test_jobs_of_one_organization_or_of_none_keep_their_order() -> None:
    for number in range(5):
        put(f"a{number}", by=1)
    assert take(5) == [f"a{number}" for number in range(5)]
    for number in range(5):
        put(f"none{number}")
    assert take(2) == ["none0", "none1"]
    put("none5")
    assert take(4) == ["none2", "none3", "none4", "none5"]
    put("a5", by=1)  # the queue was empty: everybody begins again
    assert names() == ["a5"]


def test_jobs_that_become_due_take_turns_too() -> None:
    queue, before = rq_queue(LATER), datetime.now(UTC) - timedelta(seconds=60)
    for number in range(20):
        queue.enqueue_at(before, LEAVE, f"a{number}", meta={"organization": 1})
    queue.enqueue_at(before + timedelta(seconds=1), LEAVE, "b0", meta={"organization": 2})
    scheduler = _Scheduler([queue], connection=client(QUEUES), serializer=JSONSerializer)
    scheduler.acquire_locks()
    scheduler.enqueue_scheduled_jobs()
    scheduler.release_locks()
    assert "b0" in names(LATER)[:2]
    assert len(names(LATER)) == 21
    assert queue.scheduled_job_registry.get_job_ids() == []


def test_jobs_of_an_older_version_are_kept_in_place() -> None:
    for name in ("old0", "old1"):  # by RQ's own queue: without a round
        job = Job.create(LEAVE, args=(name,), connection=client(QUEUES), serializer=JSONSerializer, origin=QUEUE)
        job.save()
        client(QUEUES).rpush(rq_queue(QUEUE).key, job.id)
    for number in range(3):
        put(f"a{number}", by=1)
    put("b0", by=2)
    assert names() == ["old0", "old1", "a0", "b0", "a1", "a2"]


def test_a_burst_behind_a_head_without_a_round_goes_before_nobody() -> None:
    for number in range(20):
        put(f"a{number}", by=1)
    take(10)
    job = Job.create(LEAVE, args=("front",), connection=client(QUEUES), serializer=JSONSerializer, origin=QUEUE)
    job.save()
    rq_queue(QUEUE).push_job_id(job.id, at_front=True)
    for number in range(3):
        put(f"b{number}", by=2)
    assert names()[:7] == ["front", "a10", "b0", "a11", "b1", "a12", "b2"]


def test_a_burst_behind_a_job_of_an_earlier_round_goes_before_nobody() -> None:
    for number in range(20):
        put(f"a{number}", by=1)
    earlier = rq_queue(QUEUE).get_job_ids()[0]
    take(10)
    put("b0", by=2)
    rq_queue(QUEUE).push_job_id(earlier, at_front=True)  # RQ does so with a job that its worker gave back
    for number in range(3):
        put(f"c{number}", by=3)
    assert names()[:8] == ["a0", "a10", "b0", "c0", "a11", "c1", "a12", "c2"]


@pytest.mark.parametrize("taken", [0, 1], ids=["the oldest first", "the oldest later"])
def test_the_age_of_a_queue_is_that_of_its_oldest_job(taken: int) -> None:
    for number in range(3):
        put(f"a{number}", by=1)
    before = clock.now() - timedelta(seconds=60)
    for job in rq_queue(QUEUE).get_jobs():
        job.enqueued_at = before
        job.save()
    put("b0", by=2)
    put("b1", by=2)
    put("b2", by=2)
    take(taken)
    assert names()[0] == ("b0" if taken else "a0")
    assert names()[-1] == "b2"
    state = read_queue(QUEUE, clock.now())
    assert (state.waiting, state.oldest_s >= 60) == (6 - taken, True)


def test_the_last_job_of_a_long_queue_counts_too() -> None:
    for number in range(FIRST_JOBS + 5):
        put(f"a{number}", by=1)
    last = rq_queue(QUEUE).get_jobs()[-1]
    last.enqueued_at = clock.now() - timedelta(seconds=60)
    last.save()
    assert read_queue(QUEUE, clock.now()).oldest_s >= 60
    client(QUEUES).delete(rq_queue(QUEUE).key)
    assert read_queue(QUEUE, clock.now()).oldest_s == 0
