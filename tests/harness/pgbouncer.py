"""A PgBouncer in transaction mode in front of the tests' server, if it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection

from tests.support.database import reconnect
from tests.support.processes import database_url, free_port
from tests.support.waiting import PATIENCE, wait_until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def version() -> tuple[int, ...]:
    """Return its version; (0, 0) if it is not installed."""
    if PGBOUNCER is None:
        return 0, 0
    told = subprocess.run([PGBOUNCER, "--version"], capture_output=True, text=True).stdout
    return tuple(int(number) for number in told.split()[1].split(".")[:2])


KEEPS_STATEMENTS = version() >= (1, 21)


class Relay(threading.Thread):
    """Relay connections from a local port to PostgreSQL, wherever the tests have it.

    A PgBouncer that does not run as root cannot open the embedded server's socket.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        url = urlsplit(database_url("x"))
        folder = parse_qs(url.query).get("host", [url.hostname or ""])[0]
        self._server: Any = (url.hostname, url.port or 5432)
        if folder.startswith("/"):
            self._server = f"{folder}/.s.PGSQL.{url.port or 5432}"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed: the test is over
                return
            kind = socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET
            server = socket.socket(kind)
            server.connect(self._server)
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def bouncer(transactional_db: None) -> Iterator[int]:
    """Run a PgBouncer in transaction mode in front of the tests' server; yield its port."""
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed (Debian: apt install pgbouncer)")
    url, port, relay = urlsplit(database_url("x")), free_port(), Relay()
    where = f"host=127.0.0.1 port={relay.port} user={url.username or 'postgres'}"
    where += f" password={url.password}" if url.password else ""
    folder = Path(tempfile.mkdtemp(prefix="bouncer-"))
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = {where}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = any\npool_mode = transaction\nunix_socket_dir =\nlogfile = {folder}/log\n"
        f"{'max_prepared_statements = 200' if KEEPS_STATEMENTS else ''}\n"
    )
    command = [PGBOUNCER, str(config)]
    if os.geteuid() == 0:  # it refuses to run as root
        folder.chmod(0o777)
        command = [PGBOUNCER, "-u", "nobody", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)
        relay.close()
        shutil.rmtree(folder)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def connected_through(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connect all threads of this process through the PgBouncer at `port`, without session parameters."""
    user = connection.settings_dict["USER"] or "postgres"
    reconnect()
    with monkeypatch.context() as patch:
        for key, value in {"HOST": "127.0.0.1", "PORT": str(port), "USER": user}.items():
            patch.setitem(connection.settings_dict, key, value)
        patch.delitem(connection.settings_dict["OPTIONS"], "options", raising=False)
        yield
    reconnect()
