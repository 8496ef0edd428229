"""The supervisor: readable output, restarts, an orderly end, nothing left behind."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dispatch.core import supervisor as supervision
from dispatch.core.supervisor import NotReady, Spec, Supervisor
from tests.processes import ROOT
from tests.waiting import PATIENCE, wait_until


def python(name: str, code: str, **more: object) -> Spec:
    return Spec(name, [sys.executable, "-u", "-c", code], **more)


SLEEP = "import time; print('up'); time.sleep(600)"


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(supervision, "LONGEST_PAUSE_S", 0.2)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_lines_carry_the_name_of_who_said_them() -> None:
    out = io.StringIO()
    with Supervisor([python("web", "print('hello'); " + SLEEP), python("worker", SLEEP)], out=out):
        wait_until(lambda: "web    | hello\n" in out.getvalue() and "worker | up\n" in out.getvalue())
    assert "\x1b" not in out.getvalue()  # no colours where nobody looks at a terminal


def test_a_child_that_dies_is_started_again() -> None:
    out = io.StringIO()
    with Supervisor([python("web", SLEEP)], out=out) as children:
        first = wait_until(lambda: children.pid_of("web"))
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: children.pid_of("web") not in (None, first))
        assert "web was ended by SIGKILL; starting it again" in out.getvalue()


def test_one_that_keeps_dying_is_reported_with_its_last_lines_and_tried_on() -> None:
    out = io.StringIO()
    spec = python("worker dispatch-queue", "raise SystemExit('no such table')")
    with Supervisor([spec, python("web", SLEEP)], out=out) as children:
        wait_until(lambda: "worker dispatch-queue keeps dying" in out.getvalue())
        reported = out.getvalue()
        assert "    no such table" in reported.split("keeps dying")[1]
        wait_until(lambda: out.getvalue().count("| no such table") > reported.count("| no such table"))
        assert children.pid_of("web")


def test_waiting_until_ready_ends_with_the_last_lines_when_it_never_comes() -> None:
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


def test_nothing_is_left_behind_not_even_what_ignores_the_signal_or_was_started_by_a_child() -> None:
    stubborn = python("stubborn", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP)
    child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid); " + SLEEP
    out = io.StringIO()
    with Supervisor([stubborn, python("parent", child)], out=out, grace_s=0.5) as children:
        wait_until(lambda: out.getvalue().count("| up") == 3)
        mother, parent = children.pid_of("stubborn"), children.pid_of("parent")
        grandchildren = psutil.Process(parent).children()
        assert grandchildren
    assert not any(alive(pid) for pid in (mother, parent))
    wait_until(lambda: not any(process.is_running() for process in grandchildren))
    assert "stubborn does not stop, it is killed" in out.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_killing_the_supervisor_itself_ends_the_children() -> None:
    code = (
        "import sys, time\nfrom dispatch.core.supervisor import Spec, Supervisor\n"
        f"children = Supervisor([Spec('web', [sys.executable, '-u', '-c', {SLEEP!r}])]).__enter__()\n"
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


def test_what_must_be_kept_alive_besides_is_watched_and_told() -> None:
    news = iter(["The embedded Valkey was gone and is started again."])
    out = io.StringIO()
    with Supervisor([python("web", SLEEP)], out=out, watch=lambda: next(news, None)):
        wait_until(lambda: "up  | The embedded Valkey was gone" in out.getvalue())


def test_a_child_that_cannot_take_its_port_is_not_ready_though_another_answers_there(tmp_path: Path) -> None:
    """The file is the child's own word; at the address somebody else may answer."""
    spec = python("simulator", SLEEP, ready_file=tmp_path / "ready")
    with Supervisor([spec], out=io.StringIO()) as children, pytest.raises(NotReady, match="simulator"):
        children.wait_ready(timeout=0.5)
    writes = python(
        "simulator", f"open({str(tmp_path / 'ready')!r}, 'w'); " + SLEEP, ready_file=tmp_path / "ready"
    )
    with Supervisor([writes], out=io.StringIO()) as children:
        children.wait_ready(timeout=PATIENCE)


def test_a_socket_held_by_the_supervisor_outlives_the_child_that_serves_it() -> None:
    answer_once = (
        "import socket, sys\n"
        "listening = socket.socket(fileno=int(sys.argv[1]))\n"
        "connection, _ = listening.accept()\n"
        "connection.sendall(b'served'); connection.close()\n"  # and it ends
    )
    with socket.create_server(("127.0.0.1", 0)) as held:
        command = [sys.executable, "-c", answer_once, str(held.fileno())]
        spec = Spec("web", command, pass_fds=(held.fileno(),))
        with Supervisor([spec], out=io.StringIO()):
            for _ in range(3):  # each by another process; nobody is refused in between
                with socket.create_connection(held.getsockname(), timeout=PATIENCE) as caller:
                    assert caller.recv(16) == b"served"


def test_a_child_that_cannot_even_be_started_is_told_tried_again_and_holds_up_nobody(tmp_path: Path) -> None:
    missing = tmp_path / "worker"
    out = io.StringIO()
    with Supervisor([Spec("worker", [str(missing)]), python("web", SLEEP)], out=out) as children:
        wait_until(lambda: "worker cannot be started" in out.getvalue() and children.pid_of("web"))
        missing.write_text("#!/bin/sh\nexec sleep 600\n")
        missing.chmod(0o700)
        wait_until(lambda: children.pid_of("worker"), message="it is not tried again")
