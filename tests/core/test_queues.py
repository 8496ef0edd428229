"""Jobs are enqueued after the commit, and a Redis outage fails no caller."""

from __future__ import annotations

import time

import pytest
from django.conf import settings
from django.db import transaction
from rq.job import Job
from rq.serializers import JSONSerializer

from dispatch.core.observability import metrics
from dispatch.core.redis.client import QUEUES, client
from dispatch.core.runtime.queues import enqueue, enqueue_in, notification_channel, notify_loop, rq_queue
from tests.core.outages import redis_away
from tests.support.redis_requests import note_redis_requests
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = settings.DISPATCH_QUEUE
LEAVE = "tests.core.jobs.leave"


def waiting() -> list[tuple[str, tuple]]:
    return [(job.func_name, tuple(job.args)) for job in rq_queue(QUEUE).get_jobs()]


def test_a_job_goes_on_the_queue_only_when_the_transaction_commits() -> None:
    with transaction.atomic():
        enqueue(QUEUE, LEAVE, "a", 7, None)
        assert waiting() == []
    assert waiting() == [(LEAVE, ("a", 7, None))]


def test_a_rolled_back_transaction_enqueues_nothing() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        enqueue(QUEUE, LEAVE, "a")
        enqueue_in(QUEUE, 60, LEAVE, "a")
        _ = 1 / 0
    assert waiting() == []
    assert rq_queue(QUEUE).scheduled_job_registry.get_job_ids() == []


def test_outside_a_transaction_it_goes_at_once() -> None:
    enqueue(QUEUE, LEAVE, "a")
    assert waiting() == [(LEAVE, ("a",))]


def test_jobs_keep_their_failures_a_week_and_their_results_briefly() -> None:
    enqueue(QUEUE, LEAVE, "a")
    job = rq_queue(QUEUE).get_jobs()[0]
    assert (job.timeout, job.result_ttl, job.failure_ttl) == (60, 60, 7 * 86400)


def test_a_delayed_job_is_never_due_early() -> None:
    for seconds in (2.0, 2.001, 2.5, 2.999, 300):
        before = time.time()
        enqueue_in(QUEUE, seconds, LEAVE, str(seconds))
        registry = rq_queue(QUEUE).scheduled_job_registry
        job_id = max(registry.get_job_ids(), key=registry.get_scheduled_time)
        due = registry.get_scheduled_time(job_id).timestamp()
        assert before + seconds <= due <= time.time() + seconds + 1  # in whole seconds


def test_delayed_job_is_enqueued_in_one_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = note_redis_requests(monkeypatch)
    enqueue_in(QUEUE, 300, LEAVE, "x")
    assert len(sent) == 1
    (job_id,) = rq_queue(QUEUE).scheduled_job_registry.get_job_ids()
    assert Job.fetch(job_id, client(QUEUES), JSONSerializer).args == ["x"]


def test_a_delay_near_zero_goes_on_the_queue_at_once() -> None:
    enqueue_in(QUEUE, 0.5, LEAVE, "a")
    assert waiting() == [(LEAVE, ("a",))]


def test_work_continues_without_redis_and_the_loss_is_counted() -> None:
    def lost() -> float:
        return metrics.enqueue_failures.labels(QUEUE)._value.get()

    before = lost()
    with redis_away(), transaction.atomic():
        enqueue(QUEUE, LEAVE, "a")
        enqueue_in(QUEUE, 60, LEAVE, "a")
        notify_loop("auditor")
    assert lost() == before + 2
    assert waiting() == []


def test_invalid_job_fails_before_the_commit() -> None:
    with pytest.raises(KeyError, match="dispatch-queue"):
        enqueue("dispach-queue", LEAVE)
    with pytest.raises(TypeError):
        enqueue(QUEUE, LEAVE, object())


def test_wakeup_is_sent_after_the_commit() -> None:
    listener = client().pubsub(ignore_subscribe_messages=True)
    listener.subscribe(notification_channel())
    wait_until(lambda: client().pubsub_numsub(notification_channel())[0][1] == 1)
    with transaction.atomic():
        notify_loop("auditor")
        assert listener.get_message(timeout=0.05) is None
    message = wait_until(lambda: listener.get_message(timeout=0.1))
    assert message["data"] == b"auditor"
    listener.close()
