"""Run real child processes of the application for tests: start, watch, kill."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

from django.conf import settings

from dispatch.core import clock
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]


def database_url(name: str) -> str:
    """Return the URL of database `name` on the tests' server."""
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))


def database_address() -> str | tuple[str, int]:
    """Return the path of the Unix socket of the tests' PostgreSQL, or its host and port."""
    url = urlsplit(database_url("x"))
    folder = parse_qs(url.query).get("host", [url.hostname or ""])[0]
    if folder.startswith("/"):
        return f"{folder}/.s.PGSQL.{url.port or 5432}"
    return url.hostname or "127.0.0.1", url.port or 5432


def environment(database: str, **more: str) -> dict[str, str]:
    """Return the environment for a child on `database` and the tests' Redis, with the current test clock.

    `more` adds variables, such as DISPATCH_FAULTS="jobs.offer.committed=kill".
    """
    inherited = {name: value for name, value in os.environ.items() if name != "DB_POOL_SIZE"}
    return {
        **inherited,
        "DJANGO_SETTINGS_MODULE": "dispatch.settings",
        "DATABASE_URL": database_url(database),
        "REDIS_URL": settings.REDIS_URL,
        "REDIS_PREFIX": settings.REDIS_PREFIX,
        "PUBLIC_BASE_URL": settings.PUBLIC_BASE_URL,
        "DISPATCH_CLOCK_OFFSET_S": str(clock.offset_ms() / 1000),
        "LOG_LEVEL": "INFO",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def free_port() -> int:
    """Return a free port of this machine, for a process that cannot choose one itself.

    It is below the system's ephemeral ports, so that no other process gets it by chance.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """A running `manage.py` command in a separate process group; it inherits the open files `pass_fds`.

    `folder` has the code that it runs.
    """

    def __init__(
        self,
        arguments: tuple[str, ...],
        env: Mapping[str, str],
        pass_fds: tuple[int, ...] = (),
        folder: Path = ROOT,
    ) -> None:
        self.arguments = arguments
        self._started_with = (arguments, env, pass_fds, folder)
        self._log = Path(tempfile.mkdtemp(prefix="process-")) / "log"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                pass_fds=pass_fds,
            )  # fmt: skip

    def again(self) -> Process:
        """Start the same command again."""
        return Process(*self._started_with)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return None while it runs; a negative code is the signal that ended it."""
        return self._process.poll()

    def log(self) -> str:
        """Return everything it has printed."""
        return self._log.read_text(errors="replace")

    def says(self, words: str, timeout: float = PATIENCE) -> None:
        """Wait until its output contains `words`."""
        wait_until(
            lambda: words in self.log() or self.returncode is not None,
            message=lambda: f"{' '.join(self.arguments)} did not say {words!r}:\n{self.log()}",
            timeout=timeout,
        )
        assert words in self.log(), f"{' '.join(self.arguments)} ended before saying {words!r}:\n{self.log()}"

    def ends(self, timeout: float = PATIENCE) -> int:
        """Wait until it has ended by itself; return its exit code."""
        wait_until(
            lambda: self.returncode is not None,
            message=lambda: f"{' '.join(self.arguments)} does not end:\n{self.log()}",
            timeout=timeout,
        )
        assert self.returncode is not None
        return self.returncode

    def signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and its process group with SIGKILL, like a power cut; return when they are gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(timeout=PATIENCE)

    def stop(self, timeout: float = PATIENCE) -> int:
        """Send SIGTERM, as the supervisor does; return its exit code."""
        self.signal(signal.SIGTERM)
        return self.ends(timeout)


@contextmanager
def running(*arguments: str, env: dict[str, str]) -> Iterator[Process]:
    """Run a manage.py command in the background, and kill it at the end.

    with running("worker", "dispatch-queue", env=environment(...)) as worker: ...
    """
    process = Process(arguments, env)
    try:
        yield process
    finally:
        process.kill()
