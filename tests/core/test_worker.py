"""A real worker process runs jobs, and survives Redis and its predecessor's death."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from redis import Redis
from redis.connection import AbstractConnection
from rq import Queue, Worker
from rq.job import Job
from rq.serializers import JSONSerializer

from dispatch.core.db import session_limits
from dispatch.core.models import EventCursor
from dispatch.core.redis.client import client
from dispatch.core.runtime import rq_worker
from dispatch.core.runtime.queues import enqueue, enqueue_in, rq_queue
from dispatch.core.runtime.rq_worker import DispatchWorker
from tests.core.outages import own_valkey
from tests.support.processes import running
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE, LATER = settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE
JOBS = "tests.core.jobs"


def idle(redis: Redis) -> bool:
    """Return whether a worker waits for jobs and a scheduler holds its lock."""
    workers = [redis.hget(key, "state") for key in redis.scan_iter("rq:worker:*")]
    return b"idle" in workers and bool(redis.get(f"rq:scheduler-lock:{LATER}"))


def left(name: str) -> None:
    wait_until(
        lambda: EventCursor.objects.filter(name=name).exists(),
        message=f"no job has left {name!r}",
    )


def test_a_worker_runs_what_is_queued_and_ends_cleanly_when_asked(test_environment: dict[str, str]) -> None:
    enqueue(QUEUE, f"{JOBS}.leave", "before")
    with running("worker", QUEUE, env=test_environment) as worker:
        left("before")
        enqueue(QUEUE, f"{JOBS}.leave", "after")
        left("after")
        assert worker.stop() == 0


def test_the_first_job_of_a_worker_does_not_wait_for_the_zip_codes(test_environment: dict[str, str]) -> None:
    enqueue(QUEUE, f"{JOBS}.leave_if_loaded", "loaded")
    with running("worker", QUEUE, "--burst", env=test_environment) as worker:
        assert worker.ends() == 0
    assert EventCursor.objects.filter(name="loaded").exists()


def test_a_job_that_fails_is_kept_with_its_reason_and_the_next_one_runs(test_environment: dict[str, str]) -> None:
    enqueue(QUEUE, f"{JOBS}.fail", "bad")
    enqueue(QUEUE, f"{JOBS}.leave", "good")
    with running("worker", QUEUE, env=test_environment) as worker:
        left("good")
        worker.says("bad fails on purpose")
        [job_id] = rq_queue(QUEUE).failed_job_registry.get_job_ids()
        result = Job.fetch(job_id, client(), rq_queue(QUEUE).serializer).latest_result()
        assert result is not None
        assert "bad fails on purpose" in result.exc_string


def test_a_lost_database_connection_fails_one_job_and_not_the_next(test_environment: dict[str, str]) -> None:
    enqueue(QUEUE, f"{JOBS}.break_connection", "broken")
    enqueue(QUEUE, f"{JOBS}.leave", "next")
    with running("worker", QUEUE, env=test_environment):
        left("next")


def test_worker_without_redis_logs_it_and_exits(
    test_environment: dict[str, str],
) -> None:
    env = {**test_environment, "REDIS_URL": "unix:///nonexistent/redis.sock"}
    with running("worker", QUEUE, env=env) as worker:
        assert worker.ends() != 0
        assert "stops because Redis is unavailable" in worker.log()
        assert "Traceback" not in worker.log()


def test_a_worker_that_gave_up_exits_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor starts another one."""
    monkeypatch.setattr(session_limits, "_kind", "")
    monkeypatch.setattr(DispatchWorker, "work", lambda *_, **__: None)
    with pytest.raises(SystemExit) as ended:
        call_command("worker", QUEUE)
    assert ended.value.code == 1


def test_worker_continues_after_redis_lost_its_data(test_environment: dict[str, str]) -> None:
    from tests.conftest import forget_redis

    enqueue(QUEUE, f"{JOBS}.leave", "before")
    with running("worker", QUEUE, env=test_environment):
        left("before")
        forget_redis()
        enqueue(QUEUE, f"{JOBS}.leave", "after")
        left("after")


@pytest.mark.parametrize("beats", [0, 1])
def test_worker_registers_again_after_redis_lost_its_data(beats: int) -> None:
    """Otherwise the health bar and the metrics report no worker until it is restarted."""
    from dispatch.core.runtime.rq_worker import DispatchWorker
    from tests.conftest import forget_redis

    worker = DispatchWorker([rq_queue(QUEUE)], connection=client())
    worker.register_birth()
    forget_redis()
    for _ in range(beats):  # those that it sends with a job renew what they do not look at
        with client().pipeline() as pipeline:
            worker.heartbeat(60, pipeline)
            pipeline.execute()
    worker.heartbeat()
    assert [(one.name, one.queue_names()) for one in Worker.all(queue=rq_queue(QUEUE))] == [(worker.name, [QUEUE])]
    worker.register_death()


def test_a_job_takes_four_round_trips_to_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """To take, read and begin it, and to write that it is done and the worker idle again."""
    for interval in ("BEAT_S", "SUSPENSION_S"):
        monkeypatch.setattr(rq_worker, interval, 3600.0)
    worker = DispatchWorker([rq_queue(QUEUE)], connection=client(), name="counted")
    worker.maintenance_interval = 3600
    sent: list[bytes] = []
    send = AbstractConnection.send_packed_command

    def count(connection: AbstractConnection, command: list[bytes], *args: Any, **kwargs: Any) -> None:
        sent.append(b"".join(command))
        send(connection, command, *args, **kwargs)

    def trips(jobs: int) -> int:
        for n in range(jobs):
            enqueue(QUEUE, f"{JOBS}.leave", f"counted-{jobs}-{n}")
        sent.clear()
        worker.work(burst=True)
        return len(sent)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", count)
    trips(1)  # scripts are loaded, and intervals begin
    assert trips(5) - trips(1) == 4 * 4
    worker.refresh()
    assert (worker.get_state(), worker.successful_job_count, worker.get_current_job_id()) == ("idle", 1, None)
    assert len(rq_queue(QUEUE).finished_job_registry) == 7


def test_a_delayed_job_runs_when_it_is_due(test_environment: dict[str, str]) -> None:
    enqueue_in(LATER, 2, f"{JOBS}.leave", "delayed")
    with running("worker", LATER, env=test_environment):
        left("delayed")


def test_next_worker_in_the_slot_takes_over_the_scheduler_after_a_power_cut(
    test_environment: dict[str, str],
) -> None:
    with running("worker", LATER, "--slot", "1", env=test_environment) as first:
        first.says("worker_started")
        wait_until(lambda: client().get(f"rq:scheduler-lock:{LATER}"), message="nobody holds the scheduler's lock")
        first.kill()
    client().expire(f"rq:scheduler-lock:{LATER}", 3600)  # a scheduler that waits for expiry waits in vain
    enqueue_in(LATER, 2, f"{JOBS}.leave", "delayed")
    with running("worker", LATER, "--slot", "1", env=test_environment):
        left("delayed")


def test_the_scheduler_ends_with_a_worker_that_is_killed(test_environment: dict[str, str]) -> None:
    import psutil

    with running("worker", LATER, env=test_environment) as worker:
        worker.says("worker_started")
        children = wait_until(lambda: psutil.Process(worker.pid).children(), message="it has no scheduler")
        worker.signal(signal.SIGKILL)  # only the scheduler, not its group
        _, alive = psutil.wait_procs(children, timeout=PATIENCE)
        assert not alive


def test_a_worker_works_exactly_one_queue() -> None:
    from dispatch.core.runtime.rq_worker import DispatchWorker

    with pytest.raises(ValueError, match="exactly one queue"):
        DispatchWorker([rq_queue(QUEUE), rq_queue(LATER)], connection=client())


def test_worker_and_scheduler_survive_a_redis_restart(test_environment: dict[str, str], tmp_path: Path) -> None:
    with own_valkey(tmp_path) as server:
        env = {**test_environment, "REDIS_URL": server.url}
        queue = Queue(LATER, connection=server.client(), serializer=JSONSerializer)
        with running("worker", LATER, env=env) as worker:
            worker.says("worker_started")
            wait_until(lambda: idle(server.client()), message="it does not wait for jobs")
            server.kill()
            worker.says("scheduler_waiting_for_redis")
            server.start()
            queue.enqueue_in(timedelta(seconds=2), f"{JOBS}.leave", "after the outage")
            left("after the outage")
            assert "Traceback" not in worker.log()


def test_a_job_that_vanished_while_it_ran_leaves_nothing_that_a_page_cannot_show() -> None:
    worker = DispatchWorker([rq_queue(QUEUE)], connection=client(), name="bereft")
    enqueue(QUEUE, f"{JOBS}.lose_itself", "lost")
    enqueue(QUEUE, f"{JOBS}.leave", "kept")
    worker.work(burst=True)
    left("lost")
    left("kept")
    [job_id] = rq_queue(QUEUE).finished_job_registry.get_job_ids()
    assert Job.fetch(job_id, client(), rq_queue(QUEUE).serializer).args == ["kept"]
    assert client().keys("rq:job:*") == [Job.key_for(job_id).encode()]


def test_a_repeated_job_that_succeeds_keeps_no_result_of_its_failure() -> None:
    worker = DispatchWorker([rq_queue(QUEUE)], connection=client(), name="patient")
    enqueue(QUEUE, f"{JOBS}.fail_once", "again")
    worker.work(burst=True)
    [job_id] = rq_queue(QUEUE).failed_job_registry.get_job_ids()
    rq_queue(QUEUE).failed_job_registry.requeue(job_id)
    worker.work(burst=True)
    job = Job.fetch(job_id, client(), rq_queue(QUEUE).serializer)
    assert (job.get_status(), job.latest_result()) == ("finished", None)
    assert 0 < client().ttl(job.key) <= 60
