"""Run the real processes for the benchmark `jobs`: web, dispatcher and workers, as `make up` does.

On free ports, with the no-op provider or the simulator.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

from dispatch.core.runtime.supervisor import ProcessSpec, Supervisor
from tests.benchmarks import noop_provider
from tests.benchmarks.processes import Meter
from tests.support.processes import environment

OURS, FORKING = "ours", "forking"
DIALER_LOOPS = "leads_promoter,leads_dialer"
PROVIDER = "provider"


@dataclass(frozen=True)
class Site:
    """A running site."""

    base_url: str
    supervisor: Supervisor
    names: tuple[str, ...]
    provider_url: str = ""

    def meter(self) -> Meter:
        """Counts the CPU seconds of its processes, of the servers and of this process (which makes the load)."""
        return Meter({**self._pids(), **server_pids(), "clients": os.getpid()}, alone={"clients"})

    def meter_ours(self) -> Meter:
        """Counts the same without the phone provider, the clients, and this process's session of PostgreSQL."""
        ours = {name: pid for name, pid in self._pids().items() if name not in ("simulator", PROVIDER)}
        servers = server_pids()
        return Meter({**ours, **servers}, without={"postgres": session_pid()} if "postgres" in servers else {})

    def meter_provider(self) -> Meter:
        """Count the CPU seconds of the phone provider, which shares the cores with what is measured."""
        return Meter({PROVIDER: self.pid_of(PROVIDER)})

    def pid_of(self, name: str) -> int:
        """Return the process id of a process of the site."""
        return self._pids()[name]

    def _pids(self) -> dict[str, int]:
        return {name: pid for name in self.names if (pid := self.supervisor.pid_of(name))}


@contextmanager
def running(
    *,
    workers: str = "",
    dispatcher: bool = True,
    simulator: bool = False,
    provider: bool = False,
    dialers: int = 0,
    queues: Sequence[str] = (),
) -> Iterator[Site]:
    """Run a site whose `dispatch-queue` has our workers (`workers=OURS`), plain forking ones (FORKING), or none.

    With a number of processes that only call leads, and a worker for each of `queues`. The phone provider is the
    simulator, `whole_provider`, or none.
    """
    port, simulator_port = _free_port(), _free_port()
    base_url, simulator_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{simulator_port}"
    specs = [_manage("web", "web", "--port", str(port), ready=f"{base_url}/readyz")]
    if dispatcher:
        specs.append(_manage("dispatcher", "dispatcher"))
    specs += _workers(workers)
    specs += [_manage(f"worker {queue}", "worker", queue) for queue in queues]
    specs += [_manage(f"dialer {n}", "dispatcher", "--only", DIALER_LOOPS) for n in range(dialers)]
    if simulator:
        specs.insert(0, _simulator(simulator_url, simulator_port))
    if provider:
        command = [sys.executable, "-m", "tests.benchmarks.whole_provider", str(simulator_port)]
        specs.insert(0, ProcessSpec(PROVIDER, command, ready_url=f"{simulator_url}/control/state", stop_stage=2))
    connections.close_all()
    supervisor = Supervisor(specs, _environment(base_url, simulator_url), show=_trouble)
    with supervisor:
        supervisor.wait_ready()
        yield Site(base_url, supervisor, tuple(spec.name for spec in specs), simulator_url)


def session_pid() -> int:
    """Return the process of PostgreSQL that serves this process, which waits for the work by counting rows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def server_pids() -> dict[str, int]:
    """The embedded servers' first processes; nothing for servers given by URL."""
    found = {}
    if settings.EMBEDDED_POSTGRES:
        found["postgres"] = int((settings.DATA_DIR / "postgres" / "postmaster.pid").read_text().split()[0])
    if settings.EMBEDDED_REDIS:
        found["valkey"] = int((settings.DATA_DIR / "valkey" / "valkey.pid").read_text())
    return found


def _workers(kind: str) -> list[ProcessSpec]:
    if not kind:
        return []
    specs = []
    for queue in (settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE):
        count = settings.WORKERS[queue]
        for slot in range(1, count + 1):
            name = f"worker {queue} {slot}"
            if kind == FORKING and queue == settings.DISPATCH_QUEUE:
                specs.append(ProcessSpec(name, [sys.executable, "-m", "tests.benchmarks.plain_worker", queue]))
            else:
                specs.append(_manage(name, "worker", queue, "--slot", str(slot)))
    return specs


def _manage(name: str, *arguments: str, ready: str = "") -> ProcessSpec:
    named = ["env", f"PGAPPNAME={name}"]  # so that the server's log says whose statements it lists
    return ProcessSpec(name, [*named, sys.executable, "manage.py", *arguments], ready_url=ready)


def _simulator(url: str, port: int) -> ProcessSpec:
    config = io.StringIO()
    call_command("simulator_config", stdout=config, skip_checks=True)
    command = [
        sys.executable, "-m", "dispatch.dev.simulator", "--quiet",
        "--port", str(port), "--config", config.getvalue().strip(),
    ]  # fmt: skip
    return ProcessSpec("simulator", command, ready_url=f"{url}/control/state", stop_stage=2)


def _environment(base_url: str, simulator_url: str) -> dict[str, str]:
    return environment(
        connection.settings_dict["NAME"],
        PUBLIC_BASE_URL=base_url,
        SIMULATOR_URL=simulator_url,
        PROVIDER_MODULES=json.dumps({noop_provider.NAME: noop_provider.MODULE}),
        LOG_LEVEL="WARNING",
        LOG_FORMAT="console",
    )


def _trouble(name: str, line: str) -> bool:
    return "error" in line or "Traceback" in line


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
