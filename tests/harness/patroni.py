"""Run PostgreSQL servers managed by Patroni, with etcd, as processes of this machine.

    with patroni_cluster() as cluster:
        primary = cluster.primary()
        primary.kill()
        cluster.wait_for_primary(other_than=primary)

Patroni and etcd are Debian's (`apt install patroni etcd-server`); PostgreSQL is the embedded one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import requests

from tests.harness.postgres_pair import BIN, SYSTEM_USER, prepare_folder
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

NODES = 3
TTL_S, LOOP_WAIT_S, RETRY_TIMEOUT_S = 20, 2, 5  # the shortest lease that Patroni allows
PROGRAMS = {"patroni": "patroni", "etcd": "etcd-server"}


def missing() -> str:
    """Return why Patroni cannot run here, or an empty text."""
    absent = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    return f"Patroni or etcd is not installed (Debian: apt install {' '.join(absent)})" if absent else ""


class Node:
    """A PostgreSQL server and the Patroni that manages it."""

    def __init__(self, name: str, folder: Path, etcd: str) -> None:
        self.name, self._folder = name, folder / name
        self.port, self._api_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder.mkdir()
        prepare_folder(self._folder)
        self._config = self._folder / "patroni.json"  # JSON is YAML
        self._config.write_text(json.dumps(self._settings(etcd)))

    def start(self) -> None:
        with (self._folder / "log").open("ab") as out:
            self._process = subprocess.Popen(
                ["/usr/bin/env", "-u", "PYTHONPATH", "patroni", str(self._config)],
                cwd=self._folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, user=SYSTEM_USER,
                start_new_session=True,
            )  # fmt: skip

    def is_primary(self) -> bool:
        """Ask Patroni, within a second."""
        return self._asks("primary")

    def is_synchronous(self) -> bool:
        return self._asks("synchronous")

    def runs(self) -> bool:
        return self._asks("health")

    def writes(self) -> bool:
        """Ask PostgreSQL whether it accepts writes."""
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self.url("postgres"), connect_timeout=2) as session,
        ):
            row = session.execute("SELECT NOT pg_is_in_recovery()").fetchone()
            return bool(row and row[0])
        return False

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def kill(self) -> None:
        """Kill Patroni and PostgreSQL with SIGKILL, like a power cut of their host."""
        family = self._family()
        for process in family:  # so that none ends or restarts another
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=PATIENCE)
        if self._process:
            self._process.wait(PATIENCE)

    def hang(self) -> None:
        """Stop Patroni and PostgreSQL with SIGSTOP; their connections stay open.

        End it with `kill`, as the watchdog of Patroni resets a host that hangs.
        """
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def switch_over(self) -> None:
        """Ask Patroni for a planned switchover from this primary to a synchronous standby."""
        answer = requests.post(
            f"http://127.0.0.1:{self._api_port}/switchover", json={"leader": self.name}, timeout=PATIENCE
        )
        assert answer.ok, answer.text

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def _asks(self, role: str) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://127.0.0.1:{self._api_port}/{role}", timeout=1).status_code == 200
        return False

    def _family(self) -> list[psutil.Process]:
        """Return Patroni's processes, and PostgreSQL's, which are not its children after it was started again."""
        roots = [self._process.pid] if self._process else []
        with suppress(FileNotFoundError, ValueError):
            roots.append(int((self._folder / "data" / "postmaster.pid").read_text().split()[0]))
        found: dict[int, psutil.Process] = {}
        for pid in roots:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                if root.name() in ("patroni", "postgres", "python3"):
                    found |= {one.pid: one for one in [root, *root.children(recursive=True)]}
        return list(found.values())

    def _settings(self, etcd: str) -> dict[str, Any]:
        address, api = f"127.0.0.1:{self.port}", f"127.0.0.1:{self._api_port}"
        login = {"password": "of-the-tests"}
        return {
            "scope": "dispatch",
            "name": self.name,
            "restapi": {"listen": api, "connect_address": api},
            "etcd3": {"host": etcd},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S,
                    "loop_wait": LOOP_WAIT_S,
                    "retry_timeout": RETRY_TIMEOUT_S,
                    "synchronous_mode": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": 200, "fsync": "off", "wal_keep_size": "128MB"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "data-checksums", "no-sync"],
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self._folder / "data"),
                "bin_dir": str(BIN),
                "pgpass": str(self._folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", **login},
                    "replication": {"username": "replicator", **login},
                    "rewind": {"username": "rewinder", **login},
                },
                "parameters": {"unix_socket_directories": ""},
            },
            "watchdog": {"mode": "off"},
        }


class PatroniCluster:
    """Three nodes; a commit is acknowledged once the primary and a synchronous standby have it."""

    def __init__(self, folder: Path, etcd: str) -> None:
        self.nodes = [Node(f"node{n + 1}", folder, etcd) for n in range(NODES)]

    def start(self) -> None:
        first, *others = self.nodes
        first.start()
        wait_until(first.writes, message=first.log)
        for node in others:
            node.start()
        self.wait_for_standby()

    def url(self, database: str) -> str:
        """Return the URL with all hosts. Sessions are opened at the one that accepts writes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def primary(self) -> Node:
        return wait_until(
            lambda: next((node for node in self.nodes if node.is_primary()), None), message=self.logs
        )

    def wait_for_primary(self, other_than: Node) -> tuple[Node, float]:
        """Wait until another node accepts writes; return it and when that was, in time.monotonic()."""
        others = [node for node in self.nodes if node is not other_than]
        found = wait_until(
            lambda: [node for node in others if node.is_primary() and node.writes()], message=self.logs
        )
        return found[0], time.monotonic()

    def wait_for_standby(self) -> None:
        """Wait until every node runs, and one of them is a synchronous standby."""

        def complete() -> bool:
            is_synchronous = any(node.is_synchronous() for node in self.nodes)
            return is_synchronous and all(node.runs() for node in self.nodes)

        wait_until(complete, message=self.logs, interval=0.2)

    def logs(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.log()}" for node in self.nodes)


@contextmanager
def patroni_cluster() -> Iterator[PatroniCluster]:
    """Yield a running cluster. Everything ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="patroni-"))
    prepare_folder(folder)
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with (folder / "etcd.log").open("wb") as out:
        etcd = subprocess.Popen(
            ["etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"default={peer}"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    cluster = PatroniCluster(folder, client.removeprefix("http://"))
    try:
        cluster.start()
        yield cluster
    finally:
        for node in cluster.nodes:
            node.kill()
        etcd.kill()
        etcd.wait()
        shutil.rmtree(folder, ignore_errors=True)
