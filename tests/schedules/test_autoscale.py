"""The autoscaler on real queues: worker processes start with the work and stop after it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.conf import settings
from django.db import connection
from rq.suspension import resume, suspend

from dispatch.core.redis.client import client
from dispatch.core.runtime import autoscaler_metrics, queues
from dispatch.core.runtime import supervisor as supervision
from dispatch.core.runtime.autoscaler import Autoscaler, report_key
from dispatch.core.runtime.autoscaling_rules import Policy
from dispatch.core.runtime.queues import rq_queue
from dispatch.core.runtime.supervisor import Supervisor
from tests.support.processes import Process, environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = settings.DISPATCH_QUEUE
POLICY = Policy(minimum=1, maximum=3, per_worker=5, calm_s=60)


@pytest.fixture
def children() -> Iterator[Supervisor]:
    with Supervisor([], environment(connection.settings_dict["NAME"])) as running:
        yield running


def put(count: int) -> None:
    for _ in range(count):
        queues.enqueue(QUEUE, "time.sleep", 0.01)


def test_workers_come_with_a_wave_and_are_drained_when_it_is_over(children: Supervisor) -> None:
    suspend(client())  # nobody works until all have been asked for, however slow this machine is
    scaler = Autoscaler({QUEUE: POLICY}, children, cap=10)
    scaler.step(0)
    assert scaler.workers(QUEUE) == 1
    put(60)
    scaler.step(1)
    scaler.step(2)
    assert scaler.workers(QUEUE) == 3
    resume(client())
    wait_until(lambda: rq_queue(QUEUE).count == 0)
    wait_until(lambda: rq_queue(QUEUE).started_job_registry.count == 0)
    scaler.step(100)
    assert scaler.workers(QUEUE) == 3  # a lull
    scaler.step(161)
    scaler.step(222)
    assert scaler.workers(QUEUE) == 1
    wait_until(lambda: children.names() == [f"worker {QUEUE} 1"])
    assert rq_queue(QUEUE).failed_job_registry.count == 0  # nobody was stopped in the middle


def test_all_that_the_database_has_room_for_and_no_more(children: Supervisor) -> None:
    suspend(client())
    scaler = Autoscaler({QUEUE: POLICY}, children, cap=2)
    scaler.step(0)
    put(200)
    for second in range(1, 4):
        scaler.step(second)
    assert scaler.workers(QUEUE) == 2
    figures = dict(autoscaler_metrics.autoscaler_workers())
    by_what = {what: value for (_, queue, what), value in figures.items() if queue == QUEUE}
    assert by_what == {"workers": 2, "wanted": 3, "minimum": 1, "maximum": 3}


def test_a_worker_that_is_killed_is_replaced_in_its_place(
    children: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.05)
    scaler = Autoscaler({QUEUE: POLICY}, children, cap=10)
    scaler.step(0)
    name = f"worker {QUEUE} 1"
    first = wait_until(lambda: children.pid_of(name))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: children.pid_of(name) not in (None, first))
    assert children.names() == [name]


def test_without_redis_nobody_is_stopped_and_the_minimum_is_there(
    children: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaler = Autoscaler({QUEUE: POLICY}, children, cap=10)

    def gone(*_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr("dispatch.core.runtime.autoscaler.read_queue", gone)
    monkeypatch.setattr("dispatch.core.runtime.autoscaler.REDIS_ERRORS", (ConnectionError,))
    scaler.step(0)
    scaler.step(1)
    assert scaler.workers(QUEUE) == 1


def test_reports_of_machines_that_are_gone_are_deleted() -> None:
    old, recent = (json.dumps({"at": time.time() - age_s, "queues": {}}) for age_s in (3600, 1))
    client().hset(report_key(), mapping={"gone": old, "here": recent})
    scaler = Autoscaler({}, Supervisor([], {}), cap=10)
    scaler.run(wait=lambda seconds: True)
    assert set(client().hkeys(report_key())) == {b"here", socket.gethostname().encode()}


def test_draining_workers_count_towards_the_connections() -> None:
    workers = Supervisor([], {})  # not started, so draining workers never end
    scaler = Autoscaler({QUEUE: POLICY}, workers, cap=3)
    put(60)
    for moment in (0, 1, 2):
        scaler.step(moment)
    assert scaler.workers(QUEUE) == 3
    rq_queue(QUEUE).empty()
    for moment in (100, 161, 222, 283):
        scaler.step(moment)
    assert (scaler.workers(QUEUE), len(workers.names(draining=True))) == (1, 2)
    put(60)
    scaler.step(284)
    assert (scaler.workers(QUEUE), len(workers.names())) == (1, 3)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_a_stopped_or_killed_autoscaler(how: signal.Signals) -> None:
    limits = {"WORKERS": f"{QUEUE}=1", "WORKERS_MAX": f"{QUEUE}=1"}
    env = environment(connection.settings_dict["NAME"], **limits)
    scaler = Process(("autoscale",), env)
    try:
        scaler.says("worker_started")
        workers = psutil.Process(scaler.pid).children()
        os.kill(scaler.pid, how)
        assert workers
        assert not psutil.wait_procs(workers, timeout=120)[1]
    finally:
        scaler.kill()


def test_more_workers_than_connections_are_refused_in_one_line() -> None:
    env = environment(connection.settings_dict["NAME"], WORKERS=f"{QUEUE}=9", AUTOSCALE_DB_CONNECTIONS="4")
    scaler = Process(("autoscale",), {**env, "WORKERS_MAX": f"{QUEUE}=9"})
    wait_until(lambda: scaler.returncode is not None)
    assert scaler.returncode == 1
    assert "WORKERS asks for 9 workers, but the database has connections for only 4" in scaler.log()
    assert "Traceback" not in scaler.log()


def test_folder_that_cannot_be_created_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("")  # where the folder should be
    env = environment(connection.settings_dict["NAME"], DISPATCH_DATA_DIR=str(tmp_path))
    scaler = Process(("autoscale",), env)
    wait_until(lambda: scaler.returncode is not None)
    assert scaler.returncode == 1
    assert "Set DISPATCH_DATA_DIR to a writable folder" in scaler.log()
    assert "Traceback" not in scaler.log()
