"""The supervisor: readable output, restarts, an orderly shutdown, no processes left behind."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from dispatch.core.observability import metrics
from dispatch.core.runtime import supervisor as supervision
from dispatch.core.runtime.supervisor import NotReady, ProcessSpec, Supervisor
from dispatch.dev.stack import stop_grace_s
from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE, wait_until


def python(name: str, code: str, **more: object) -> ProcessSpec:
    return ProcessSpec(name, [sys.executable, "-u", "-c", code], **more)


# Written at once: the lines of a child and its own child, which share a pipe, must not mix.
SLEEP = "import sys, time; sys.stdout.write('up\\n'); time.sleep(600)"


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(supervision, "MAX_PAUSE_S", 0.2)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_log_lines_carry_the_process_name() -> None:
    out = io.StringIO()
    with Supervisor([python("web", "print('hello'); " + SLEEP), python("worker", SLEEP)], out=out):
        wait_until(lambda: "web    | hello\n" in out.getvalue() and "worker | up\n" in out.getvalue())
    assert "\x1b" not in out.getvalue()  # no colors without a terminal


def test_a_child_that_dies_is_started_again() -> None:
    out = io.StringIO()
    with Supervisor([python("web", SLEEP)], out=out) as children:
        first = wait_until(lambda: children.pid_of("web"))
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: children.pid_of("web") not in (None, first))
        assert "web was killed by SIGKILL; restarting" in out.getvalue()


def test_crashing_child_is_reported_and_retried() -> None:
    out = io.StringIO()
    spec = python("worker dispatch-queue", "raise SystemExit('no such table')")
    with Supervisor([spec, python("web", SLEEP)], out=out) as children:
        wait_until(lambda: "worker dispatch-queue keeps crashing" in out.getvalue())
        reported = out.getvalue()
        assert "    no such table" in reported.split("keeps crashing")[1]
        wait_until(lambda: out.getvalue().count("| no such table") > reported.count("| no such table"))
        assert children.pid_of("web")


def test_a_child_started_again_continues_its_counters_in_the_same_files(tmp_path: Path) -> None:
    """Each process keeps its metrics in files, and every scrape reads all of them."""
    count = (
        "import os, time, django; django.setup(); from dispatch.core.observability import metrics;"
        "metrics.redis_rebuilds.inc(); os.fork() or metrics.redis_rebuilds.inc();"
        "os.write(1, b'up\\n'); time.sleep(600)"
    )
    folder = tmp_path / "metrics"
    env = {**os.environ, **metrics.new_folder(folder), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    out = io.StringIO()
    with Supervisor([python("worker dispatch-queue 1", count)], env, out=out) as children:
        for start in (1, 2):
            wait_until(lambda: out.getvalue().count("| up") == 2 * start)  # noqa: B023
            os.kill(children.pid_of("worker dispatch-queue 1") or 0, signal.SIGKILL)
        wait_until(lambda: out.getvalue().count("| up") == 6)
    collected = CollectorRegistry()
    MultiProcessCollector(collected, str(folder))
    assert collected.get_sample_value("dispatch_redis_rebuilds_total") == 6
    assert len(list(folder.glob("counter_*-worker-dispatch-queue-1.db"))) == 1


def test_wait_for_ready_fails_with_the_last_lines() -> None:
    spec = python("web", "print('port taken'); " + SLEEP, ready_url="http://127.0.0.1:9/readyz")
    out = io.StringIO()
    with Supervisor([spec], out=out) as children:
        wait_until(lambda: "port taken" in out.getvalue())
        with pytest.raises(NotReady, match="port taken"):
            children.wait_ready(timeout=0.5)


def test_children_end_stage_by_stage(tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_): open({order!r}, 'a').write({name!r} + ' '); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('up'); time.sleep(600)"
    )
    specs = [
        python(name, code.format(order=str(order), name=name), stop_stage=stage)
        for name, stage in (("simulator", 2), ("web", 1), ("worker", 0))
    ]
    out = io.StringIO()
    with Supervisor(specs, out=out, grace_s=PATIENCE):
        wait_until(lambda: out.getvalue().count("| up") == 3)
    assert order.read_text().split() == ["worker", "web", "simulator"]


def test_stop_kills_stubborn_children_and_grandchildren() -> None:
    stubborn = python("stubborn", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP)
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-uc', {SLEEP!r}]); " + SLEEP
    out = io.StringIO()
    with Supervisor([stubborn, python("parent", child)], out=out, grace_s=0.5) as children:
        wait_until(lambda: out.getvalue().count("| up") == 3)
        mother, parent = children.pid_of("stubborn"), children.pid_of("parent")
        grandchildren = psutil.Process(parent).children()
        assert grandchildren
    assert not any(alive(pid) for pid in (mother, parent))
    wait_until(lambda: not any(process.is_running() for process in grandchildren))
    assert "stubborn does not stop; killing it" in out.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_killing_the_supervisor_itself_ends_the_children() -> None:
    code = (
        "import io, sys, time\nfrom dispatch.core.runtime.supervisor import ProcessSpec, Supervisor\n"
        f"spec = ProcessSpec('web', [sys.executable, '-u', '-c', {SLEEP!r}])\n"
        "children = Supervisor([spec], out=io.StringIO()).__enter__()\n"  # or its line is inside ours
        "while not children.pid_of('web'): time.sleep(0.01)\n"
        "print(children.pid_of('web'), flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        child = next(int(line) for line in process.stdout if line.strip().isdigit())
        assert alive(child)
        process.kill()
        process.wait(PATIENCE)
        wait_until(lambda: not alive(child), message="the child outlives its supervisor")


def test_watched_servers_are_checked_and_restarts_reported() -> None:
    news = iter(["The embedded Valkey had stopped and was restarted."])
    out = io.StringIO()
    with Supervisor([python("web", SLEEP)], out=out, watch=lambda: next(news, None)):
        wait_until(lambda: "up  | The embedded Valkey had stopped" in out.getvalue())


def test_a_socket_held_by_the_supervisor_outlives_the_child_that_serves_it() -> None:
    answer_once = (
        "import socket, sys\n"
        "listening = socket.socket(fileno=int(sys.argv[1]))\n"
        "connection, _ = listening.accept()\n"
        "connection.sendall(b'served'); connection.close()\n"  # and it ends
    )
    with socket.create_server(("127.0.0.1", 0)) as held:
        command = [sys.executable, "-c", answer_once, str(held.fileno())]
        spec = ProcessSpec("web", command, pass_fds=(held.fileno(),))
        with Supervisor([spec], out=io.StringIO()):
            for _ in range(3):  # each by another process; no connection is refused in between
                with socket.create_connection(held.getsockname(), timeout=PATIENCE) as caller:
                    assert caller.recv(16) == b"served"


def test_child_that_cannot_start_is_reported_retried_and_blocks_no_other(tmp_path: Path) -> None:
    missing = tmp_path / "worker"
    out = io.StringIO()
    with Supervisor([ProcessSpec("worker", [str(missing)]), python("web", SLEEP)], out=out) as children:
        wait_until(lambda: "worker can't be started" in out.getvalue() and children.pid_of("web"))
        missing.write_text("#!/bin/sh\nexec sleep 600\n")
        missing.chmod(0o700)
        wait_until(lambda: children.pid_of("worker"), message="it is not tried again")


# It starts a child and exits before the child asks the kernel for the signal.
CHILD_OF_A_DEAD_PARENT = """
import os, time
from dispatch.core.runtime.supervisor import die_with_parent
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    die_with_parent(parent)
    print("lives on", flush=True)
os._exit(0)
"""


def test_child_of_an_already_dead_parent_ends_at_once() -> None:
    command = [sys.executable, "-c", CHILD_OF_A_DEAD_PARENT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(("is_development", "shortest", "longest"), [(True, 0, 15), (False, 60, 120)])
def test_processes_of_the_stack_may_end_their_deliveries(
    settings: Any, is_development: bool, shortest: float, longest: float
) -> None:
    settings.DEVELOPMENT = is_development
    settings.OUTBOX_MAX_TIMEOUT_S, settings.AUTOSCALE_STOP_GRACE_S = 60.0, 10.0
    # Longer than the loop runner waits for the router.
    assert shortest < stop_grace_s() - 5 < longest
