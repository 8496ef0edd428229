"""A site on several hosts: PostgreSQL, Redis, two hosts of the application, the phone provider, and a proxy.

The test itself is on the host "tester", with the clients and the receiver of messages. Each host is a network
namespace (`tests.soak.network`). Addresses, processes and files belong to the test alone.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import redis
import requests
from django.conf import settings

from dispatch.core.models import Leadership
from dispatch.dev.embedded_servers import valkey_binary
from tests.harness.postgres_pair import Server, prepare_folder, using
from tests.phones import Simulator
from tests.soak.network import SUBNET, Network
from tests.support.processes import ROOT, Process, environment
from tests.support.waiting import PATIENCE, wait_until

APPS = ("app1", "app2")
HOSTS = ("database", "redis", *APPS, "provider", "proxy", "tester")
COMMANDS: dict[str, tuple[str, ...]] = {
    "web": ("web",),
    "dispatcher": ("dispatcher",),
    "worker": ("worker", settings.DISPATCH_QUEUE),
    "timeout worker": ("worker", settings.DISPATCH_TIMEOUT_QUEUE),
    "schedule worker": ("worker", settings.SCHEDULE_KIND_QUEUES["message"]),
    "status worker": ("worker", settings.SCHEDULE_STATUS_QUEUE),
}
# What takes minutes in life, shortened. Leases of leaders and time limits for servers are those of production.
HURRIED = {
    "CALL_TIME_LIMIT_S": "60",
    "PROVIDER_TIMEOUT_S": "3",
    "UNKNOWN_LISTING_GAP_S": "10",
    "LINE_RECONCILER_INTERVAL_S": "10",
    "LEADS_JITTER_S": "1",
    "LEADS_RETRY_DELAY_S": "1",
    "OUTBOX_MAX_TIMEOUT_S": "5",
    "OUTBOX_LEASE_S": "20",
    "OUTBOX_RETRY_SCHEDULE_S": "1,1,2,2,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5",
    "SCHEDULE_LEASE_S": "30",
    "RQ_JOB_TIMEOUT_S": "20",
    "SCHEDULE_RETRY_SCHEDULE_S": "1,2,5,10,10,10",
    "API_WRITE_RATE": "6000/min",
    "REDIS_TIMEOUT_S": "2",
    "LOG_LEVEL": "WARNING",
}
DISK_BYTES = 400 * 1024 * 1024
MAX_CONNECTIONS = 120
SMALL_LOGS = "-c min_wal_size=32MB -c max_wal_size=96MB"
DATABASE, ROLE = "dispatch", "dispatch"
WEB_PORT, REDIS_PORT, PROVIDER_PORT = 8000, 6379, 8010
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


class Hosts:
    """The servers and processes of the site, by host."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self._folder = network, folder
        self.disk = folder / "disk"
        self._stack = ExitStack()
        self._running: dict[tuple[str, str], Process] = {}
        self._clock: dict[str, float] = {}
        self.restarts: Counter[str] = Counter()

    def __enter__(self) -> Hosts:
        with self._stack:
            self._stack.callback(self._kill_everything)
            self._start_postgres()
            self._start_redis()
            self._start_provider()
            self._start_proxy("proxy", WEB_PORT, *self._web_addresses(), "--probe", "/servez")
            self._stack.enter_context(using(self.server.url(DATABASE)))
            self._migrate()
            self.revive()
            wait_until(lambda: all(map(self.ready, APPS)), 5 * PATIENCE, self.logs)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- Addresses
    @property
    def base_url(self) -> str:
        """The URL of the proxy, for clients and for the provider's webhooks."""
        return f"http://{self.network.addresses['proxy']}:{WEB_PORT}"

    def address(self, host: str) -> str:
        return self.network.addresses[host]

    # --- Processes of the application
    def start(self, host: str, name: str) -> None:
        env = {**self._environment(), **self._clock_variables(host)}
        with self.network.inside(host):
            if name != "web":
                self._running[host, name] = Process(COMMANDS[name], env)
                return
            with socket.create_server((self.address(host), WEB_PORT), backlog=2048) as listening:
                command = (*COMMANDS[name], "--fd", str(listening.fileno()))
                self._running[host, name] = Process(command, env, pass_fds=(listening.fileno(),))

    def revive(self, *hosts: str) -> None:
        """Start what does not run on these hosts (default: both), as a supervisor does."""
        for host in hosts or APPS:
            for name in COMMANDS:
                process = self._running.get((host, name))
                if process is None or process.returncode is not None:
                    if process is not None:
                        self.restarts[name] += 1
                    self.start(host, name)

    def kill(self, host: str) -> None:
        """Kill everything on the host with SIGKILL."""
        for (at, _), process in self._running.items():
            if at == host:
                process.kill()

    def pause(self, host: str, name: str) -> None:
        self._running[host, name].signal(signal.SIGSTOP)

    def resume(self, host: str, name: str) -> None:
        self._running[host, name].signal(signal.SIGCONT)

    def move_clock(self, host: str, seconds: float) -> None:
        """Restart everything on the host with a clock that is this much ahead."""
        self._clock[host] = seconds
        for (at, _), process in self._running.items():
            if at == host and process.returncode is None:
                process.stop()
        self.revive(host)

    def leader(self) -> str:
        """Return the host whose dispatcher holds most leaderships."""
        pids = {self._running[host, "dispatcher"].pid: host for host in APPS}
        holders = Leadership.objects.values_list("holder", flat=True)
        count = Counter(pids.get(int(holder.split(":")[-2])) for holder in holders if holder.count(":") >= 2)
        count.pop(None, None)
        return str(count.most_common(1)[0][0]) if count else APPS[0]

    def ready(self, host: str) -> bool:
        try:
            return requests.get(f"http://{self.address(host)}:{WEB_PORT}/readyz", timeout=5).ok
        except requests.RequestException:
            return False

    def logs(self) -> str:
        texts = {f"{host} {name}": process.log()[-1500:] for (host, name), process in self._running.items()}
        return "\n".join(f"--- {name}\n{text}" for name, text in texts.items())

    # --- PostgreSQL
    def fill_disk(self) -> None:
        """Leave no byte on the disk of PostgreSQL."""
        with suppress(OSError), (self.disk / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(64 * 1024))
                filler.flush()

    def free_disk(self) -> None:
        """Free the disk, and start PostgreSQL again if it ended, as an operator does."""
        (self.disk / "filler").unlink()
        if not self._postgres_runs():
            self.restarts["postgres"] += 1
            with self.network.inside("database"):
                self.server.start()

    @contextmanager
    def connections_taken(self, victim: str) -> Iterator[None]:
        """End the victim's sessions, and hold every free connection of ordinary roles during the block."""
        url = self._application_url()
        with ExitStack() as held:
            of_victim = f"client_addr = '{self.address(victim)}'"
            self.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_victim}")
            with suppress(psycopg.OperationalError):
                while True:
                    held.enter_context(psycopg.connect(url))
            yield

    def _postgres_runs(self) -> bool:
        with suppress(psycopg.OperationalError):
            return self.server.execute("SELECT 1") == 1
        with suppress(FileNotFoundError, psutil.NoSuchProcess, ValueError):
            pid = int((self.server.folder / "postmaster.pid").read_text().split()[0])
            return psutil.Process(pid).name() == "postgres"
        return False

    def _start_postgres(self) -> None:
        self.disk.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)],
            check=True,
            capture_output=True,
        )
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)
        prepare_folder(self.disk)
        prepare_folder(self._folder)
        options = f"-c max_connections={MAX_CONNECTIONS} {SMALL_LOGS}"
        self.server = Server(self.disk / "data", self.address("database"), options)
        self.server.create()
        with (self.server.folder / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET}.0/24 trust\n")
        self._stack.callback(self.server.kill)
        with self.network.inside("database"):
            self.server.start()
        self.server.execute(f"CREATE ROLE {ROLE} LOGIN", f"CREATE DATABASE {DATABASE} OWNER {ROLE}")

    def _migrate(self) -> None:
        with self.network.inside("app1"):
            migration = Process(("migrate",), self._environment())
        assert migration.ends(10 * PATIENCE) == 0, migration.log()

    def _application_url(self) -> str:
        return f"postgresql://{ROLE}@{self.server.address}/{DATABASE}"

    # --- The other servers
    def _start_redis(self) -> None:
        data = self._folder / "redis"
        data.mkdir()
        address = self.address("redis")
        command = [str(valkey_binary()), "--bind", address, "--port", str(REDIS_PORT), "--protected-mode", "no"]
        command += ["--dir", str(data), "--appendonly", "yes", "--save", "", "--logfile", str(data / "log")]
        self._spawn("redis", command)
        self.redis = redis.Redis(address, REDIS_PORT)
        wait_until(self._redis_answers, message="Valkey did not start")

    def _redis_answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self.redis.ping())
        return False

    def _start_provider(self) -> None:
        with self.network.inside("provider"):
            timing = {"webhook_floor": 4.0}
            self.sim = Simulator.start(speed=4.0, timing=timing, arguments=["--allow-remote-webhooks"])
        self._stack.callback(self.sim.stop)
        self._start_proxy("provider", PROVIDER_PORT, self.sim.base_url.removeprefix("http://"))
        self.sim.base_url = f"http://{self.address('provider')}:{PROVIDER_PORT}"

    def _start_proxy(self, host: str, port: int, *arguments: str) -> None:
        address = f"{self.address(host)}:{port}"
        self._spawn(host, [sys.executable, "-m", "tests.soak.reverse_proxy", address, *arguments])

        def answers() -> bool:
            with suppress(OSError):
                socket.create_connection((self.address(host), port), timeout=5).close()
                return True
            return False

        wait_until(answers, message=f"the proxy on {host} did not start")

    def _spawn(self, host: str, command: list[str]) -> None:
        with self.network.inside(host), tempfile.TemporaryFile() as out:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    # --- The environment of processes
    def _web_addresses(self) -> list[str]:
        return [f"{self.address(host)}:{WEB_PORT}" for host in APPS]

    def _environment(self) -> dict[str, str]:
        return environment(
            DATABASE,
            **HURRIED,
            DATABASE_URL=self._application_url(),
            REDIS_URL=f"redis://{self.address('redis')}:{REDIS_PORT}/0",
            PUBLIC_BASE_URL=self.base_url,
            ALLOWED_HOSTS=",".join([self.address("proxy"), *map(self.address, APPS)]),
            SIMULATOR_URL=self.sim.base_url,
            HTTP_ALLOWED_NETWORKS=f"{SUBNET}.0/24",
            DISPATCH_DATA_DIR=str(settings.DATA_DIR),
        )

    def _clock_variables(self, host: str) -> dict[str, str]:
        ahead = self._clock.get(host, 0.0)
        if not ahead:
            return {}
        assert FAKETIME, "libfaketime is not installed (Debian: apt install faketime)"
        return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{ahead:+g}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def _kill_everything(self) -> None:
        for process in self._running.values():
            process.signal(signal.SIGCONT)
            process.kill()


@contextmanager
def several_hosts(folder: Path) -> Iterator[Hosts]:
    """Yield the site. This thread, and those that it starts, are on the host "tester" meanwhile."""
    with Network(HOSTS) as network, network.inside("tester"), Hosts(network, folder) as made:
        yield made
