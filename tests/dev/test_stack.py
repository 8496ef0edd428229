"""Two stacks on one machine: each reserves the ports of its processes before it starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from dispatch.dev import stack
from tests.support.processes import ROOT, free_port
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def _usual_ports(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the usual ports from those that are free, because another stack may run on this machine."""
    for name in ("PUBLIC_BASE_URL", "SIMULATOR_URL", "WEB_PORT"):
        monkeypatch.delenv(name, raising=False)
    settings.DEVELOPMENT, settings.WEB_HOST = True, "127.0.0.1"
    settings.WEB_PORT, settings.SIMULATOR_URL = free_port(), f"http://127.0.0.1:{free_port()}"


def test_two_stacks_that_start_at_once_use_different_simulators(settings: Any) -> None:
    usual = settings.SIMULATOR_URL
    with ExitStack() as held:
        notes: list[str] = []
        held.enter_context(stack._simulator_address(notes, usual_ports=True))
        assert (settings.SIMULATOR_URL, notes) == (usual, [])
        settings.SIMULATOR_URL = usual  # the other stack, before any simulator runs
        listening = held.enter_context(stack._simulator_address(notes, usual_ports=True))
        port = listening.getsockname()[1]
        assert settings.SIMULATOR_URL == f"http://127.0.0.1:{port}" != usual
        assert notes == [f"Port {urlsplit(usual).port} is in use; the simulator uses {port}."]


def test_two_stacks_that_start_at_once_use_different_web_ports(settings: Any) -> None:
    usual = settings.WEB_PORT
    with ExitStack() as held:
        notes: list[str] = []
        held.enter_context(stack._web_address(notes, usual_ports=True))
        assert (settings.PUBLIC_BASE_URL, notes) == (f"http://127.0.0.1:{usual}", [])
        port = held.enter_context(stack._web_address(notes, usual_ports=True)).getsockname()[1]
        assert urlsplit(settings.PUBLIC_BASE_URL).port == port != usual
        assert notes == [f"Port {usual} is in use; web uses {port}."]


def test_chosen_address_of_the_simulator_is_kept_or_refused(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMULATOR_URL", settings.SIMULATOR_URL)
    port = urlsplit(settings.SIMULATOR_URL).port
    with stack._simulator_address([], usual_ports=True) as listening:
        assert listening.getsockname()[1] == port
        with pytest.raises(stack.CannotStart, match=f"127.0.0.1:{port}: .* Set a different SIMULATOR_URL"):
            stack._simulator_address([], usual_ports=True)


def test_simulator_serves_the_reserved_socket(settings: Any, tmp_path: Path) -> None:
    with stack._simulator_address([], usual_ports=True) as listening:
        fd, ready = listening.fileno(), tmp_path / "ready"
        command = [sys.executable, "-m", "dispatch.dev.simulator", "--fd", str(fd), "--ready-file", str(ready)]
        with subprocess.Popen(
            command, cwd=ROOT, env=os.environ, pass_fds=(fd,), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            wait_until(ready.exists)
            answer = requests.get(f"{settings.SIMULATOR_URL}/control/state", timeout=PATIENCE)
            process.terminate()
    assert answer.status_code == 200
