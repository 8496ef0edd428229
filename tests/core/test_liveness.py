"""A stuck dispatcher or worker fails its liveness probe; one that waits for its servers does not."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from rq.queue import Queue
from rq.serializers import JSONSerializer

from dispatch.core.environment import made_folder
from dispatch.core.observability import liveness, metrics
from dispatch.core.redis.client import QUEUES, connect
from dispatch.core.runtime.loop_runner import Runner
from dispatch.core.runtime.loops import Loop
from dispatch.core.runtime.rq_worker import LIVENESS_S, DispatchWorker
from tests.support.processes import ROOT


@pytest.fixture(autouse=True)
def _nothing_expected(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(metrics, "_counters", lambda: metrics.CollectorRegistry())
    liveness.reset()
    yield
    liveness.reset()


def probe() -> tuple[str, str]:
    """Return status and body of the liveness probe, asked without a token."""
    statuses = []
    body = metrics.make_application()({"PATH_INFO": "/healthz"}, lambda status, headers: statuses.append(status))
    return statuses[0], b"".join(body).decode()


def test_what_is_not_reported_in_time_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe() == ("200 OK", "ok\n")
    liveness.set_deadline("event loop", -1)
    liveness.set_deadline("worker", 60)
    assert probe() == ("503 Stuck", "stuck: event loop\n")
    liveness.set_deadline("event loop", 60)
    assert probe()[0] == "200 OK"
    liveness.set_deadline("worker", -1)
    liveness.clear_deadline("worker")
    assert probe()[0] == "200 OK"


@pytest.mark.django_db(transaction=True)
def test_a_step_that_never_ends_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "STEP_S", -1.0)
    is_running, may_end = threading.Event(), threading.Event()

    def step() -> None:
        is_running.set()
        may_end.wait(60)

    async def run() -> tuple[str, str]:
        runner = Runner([Loop("hanging", step, interval_s=60.0, limit_s=-1.0)], listen=False)
        running = asyncio.create_task(runner.run())
        await asyncio.to_thread(is_running.wait, 60)
        found = probe()
        may_end.set()
        runner.stop()
        await running
        return found

    assert asyncio.run(run()) == ("503 Stuck", "stuck: loop:hanging\n")
    assert probe()[0] == "200 OK", "a step that ended is not stuck"


expected: list[tuple[str, float]] = []


def note_job() -> None:
    expected.append(("job", 0.0))


def test_a_worker_reports_between_jobs_and_before_each(monkeypatch: pytest.MonkeyPatch) -> None:
    expected.clear()
    monkeypatch.setattr(liveness, "set_deadline", lambda name, within_s: expected.append((name, within_s)))
    monkeypatch.setattr("dispatch.core.runtime.rq_worker.close_old_connections", lambda: None)
    connection = connect(QUEUES)
    queue = Queue("liveness", connection=connection, serializer=JSONSerializer)
    queue.enqueue(note_job, job_timeout=33)
    DispatchWorker([queue], connection=connection).work(burst=True)
    job = expected.index(("job", 0.0))
    assert expected[job - 1] == ("worker", 33 + LIVENESS_S), "the last expectation before the job allows its time"
    assert expected[job + 1] == ("worker", LIVENESS_S)


def test_the_pages_name_the_limit_of_a_worker() -> None:
    folder = ROOT / "docs" / "operations"
    assert f"`worker` {LIVENESS_S:g} s after the time limit of its job" in (folder / "operations.md").read_text()
    assert f"{LIVENESS_S:g} s (worker)" in (folder / "failures.md").read_text()


def test_folders_below_the_data_folder_are_private(tmp_path: Path) -> None:
    (tmp_path / "valkey").mkdir(mode=0o755)
    assert stat.S_IMODE(made_folder(tmp_path / "valkey").stat().st_mode) == 0o700
    assert stat.S_IMODE(made_folder(tmp_path / "data", mode=0o711).stat().st_mode) == 0o711
