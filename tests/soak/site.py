"""A site of real processes to which anything may happen: each can be killed and started again by name."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import requests
from django.conf import settings
from django.db import connection

from tests.core.outages import OwnValkey, own_valkey
from tests.phones import Simulator
from tests.support.processes import Process, environment
from tests.support.waiting import wait_until

# Two of each where the design allows it, so that they also compete while nothing is wrong.
COMMANDS: dict[str, tuple[str, ...]] = {
    "web": ("web",),
    "worker 1": ("worker", settings.DISPATCH_QUEUE, "--slot", "1"),
    "worker 2": ("worker", settings.DISPATCH_QUEUE, "--slot", "2"),
    "timeout worker": ("worker", settings.DISPATCH_TIMEOUT_QUEUE),
    "dispatcher 1": ("dispatcher",),
    "dispatcher 2": ("dispatcher",),
}
WEB_2 = "web 2"  # at the same socket as the first
# Short enough to see in minutes what takes its time in life: leases, listings of unknown calls, ends not reported.
HURRIED = {
    "AUDITOR_INTERVAL_S": "1",
    "LEADER_LEASE_S": "3",
    "LEADER_RENEW_S": "1",
    "CALL_RECONCILER_INTERVAL_S": "3",
    "LINE_RECONCILER_INTERVAL_S": "10",
    "PROVIDER_TIMEOUT_S": "3",
    "UNKNOWN_LISTING_GAP_S": "5",
    "CALL_TIME_LIMIT_S": "30",
    "API_WRITE_RATE": "6000/min",
    "LOG_LEVEL": "WARNING",
}


class Site:
    """The processes by name, their Redis, and the address of web."""

    def __init__(
        self, redis: OwnValkey, env: Mapping[str, str], listening: socket.socket, names: Sequence[str]
    ) -> None:
        self.redis = redis
        self._names = names
        self.base_url = env["PUBLIC_BASE_URL"]
        self._fd = listening.fileno()
        self._env = dict(env)
        self._running: dict[str, Process] = {}
        self.restarts = 0

    def start(self, name: str) -> None:
        command = COMMANDS["web" if name == WEB_2 else name]
        if command == COMMANDS["web"]:  # as under `manage.py up`: connections wait in the socket while it restarts
            self._running[name] = Process((*command, "--fd", str(self._fd)), self._env, pass_fds=(self._fd,))
        else:
            self._running[name] = Process(command, self._env)

    def kill(self, *names: str) -> None:
        """As a power cut: at whatever each was doing."""
        for name in names:
            self._running[name].kill()

    def revive(self) -> None:
        """Starts again whatever does not run: killed, or ended by itself because Redis was gone."""
        for name in self._names:
            process = self._running.get(name)
            if process is None or process.returncode is not None:
                self.restarts += process is not None
                self.start(name)

    def ended(self) -> list[str]:
        """Names of the processes that do not run."""
        return [name for name, process in self._running.items() if process.returncode is not None]

    def ready(self) -> bool:
        try:
            return requests.get(f"{self.base_url}/readyz", timeout=5).ok
        except requests.RequestException:
            return False

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{one.log()[-3000:]}" for name, one in self._running.items())


@contextmanager
def site(sim: Simulator, folder: Path, names: Sequence[str] = tuple(COMMANDS), **more: str) -> Iterator[Site]:
    """These processes up and ready, on the test's database, a Redis of their own and this simulator.

    `more` adds variables to their environment.
    """
    with own_valkey(folder) as redis, listening_site(sim, redis, names, {**HURRIED, **more}) as made:
        yield made


@contextmanager
def listening_site(
    sim: Simulator, redis: OwnValkey, names: Sequence[str], more: Mapping[str, str]
) -> Iterator[Site]:
    """These processes with this Redis, at a socket of their own; `more` is their further environment."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        given = {
            "REDIS_URL": redis.url,
            "PUBLIC_BASE_URL": f"http://127.0.0.1:{listening.getsockname()[1]}",
            "SIMULATOR_URL": sim.base_url,
            "DISPATCH_DATA_DIR": str(settings.DATA_DIR),
        }
        env = environment(connection.settings_dict["NAME"], **{**given, **more})
        made = Site(redis, env, listening, names)
        stack.callback(made.stop)
        made.revive()
        wait_until(made.ready, 240, made.logs)
        yield made
