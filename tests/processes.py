"""Real child processes of the application for tests: started, watched, killed."""

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
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings

from dispatch.core import clock, embedded
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parent.parent


def database_url(name: str) -> str:
    """The URL of database `name` on the tests' server."""
    given = os.environ.get("DATABASE_URL") or embedded.postgres_url(settings.DATA_DIR)
    return urlunsplit(urlsplit(given)._replace(path=f"/{name}"))


def environment(database: str, **more: str) -> dict[str, str]:
    """What a child needs to work on `database` and the tests' Redis, with the clock as it is moved now.

    `more` adds variables, such as DISPATCH_FAULTS="jobs.offer.committed=kill"."""
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
    """A port of this machine that nobody listens at, for a process that cannot choose one by itself. It lies below
    those that the system hands out, so nobody is given it by chance before that process has taken it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """A running `manage.py` command in a process group of its own; it inherits the open files `pass_fds`."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str], pass_fds: tuple[int, ...] = ()) -> None:
        self.arguments = arguments
        self._started_with = (arguments, env, pass_fds)
        self._log = Path(tempfile.mkdtemp(prefix="process-")) / "log"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                pass_fds=pass_fds,
            )  # fmt: skip

    def again(self) -> Process:
        """The same command, started anew."""
        return Process(*self._started_with)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def log(self) -> str:
        """All it has printed."""
        return self._log.read_text(errors="replace")

    def says(self, words: str, timeout: float = PATIENCE) -> None:
        """Waits until its output holds `words`."""
        wait_until(
            lambda: words in self.log() or self.returncode is not None,
            message=lambda: f"{' '.join(self.arguments)} did not say {words!r}:\n{self.log()}",
            timeout=timeout,
        )
        assert words in self.log(), f"{' '.join(self.arguments)} ended before saying {words!r}:\n{self.log()}"

    def ends(self, timeout: float = PATIENCE) -> int:
        """Waits until it has ended by itself; its exit code."""
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
        """As a power cut: SIGKILL to it and whatever it started in its group; returns when it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(timeout=PATIENCE)

    def stop(self, timeout: float = PATIENCE) -> int:
        """SIGTERM, as the supervisor does; its exit code."""
        self.signal(signal.SIGTERM)
        return self.ends(timeout)


@contextmanager
def running(*arguments: str, env: dict[str, str]) -> Iterator[Process]:
    """`with running("worker", "dispatch-queue", env=environment(...)) as worker:`; killed at the end."""
    process = Process(arguments, env)
    try:
        yield process
    finally:
        process.kill()
