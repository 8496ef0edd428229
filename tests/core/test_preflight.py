"""A process checks before it works: prepared statements that last, keys that decrypt."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from dispatch.core.checks import servers
from dispatch.core.db import pooler
from dispatch.core.runtime import preflight
from tests.support import factories
from tests.support.database import reconnect
from tests.support.processes import database_url, free_port, running
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def test_postgresql_itself_keeps_prepared_statements() -> None:
    assert pooler.fault() is None


class Shared:
    """Two connections that share one session, as through a pooler without support for prepared statements."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self._names: dict[bytes, str] = {}

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, query: bytes, values: list[str], prepare: bool) -> Any:
        assert prepare
        if query not in self._names:
            self._names[query] = f"s{len(self._names)}"
            self._raw.execute(
                f"PREPARE {self._names[query]} (text) AS {query.decode().replace('%s', '$1')}".encode()
            )
        return self._raw.execute(f"EXECUTE {self._names[query]} ('{values[0]}')".encode())


def test_a_session_that_is_shared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(**pooler.parameters(), autocommit=True) as raw:
        monkeypatch.setattr(pooler, "_connected", lambda alias: Shared(raw))
        assert "loses prepared statements" in str(pooler.fault())
        assert [found.id for found in servers(None, databases=["default"]) if found.id == "dispatch.E055"]
        with pytest.raises(ImproperlyConfigured, match="max_prepared_statements"):
            preflight.check()


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
def bouncer() -> Iterator[int]:
    """Run a PgBouncer in transaction mode in front of the tests' server; yield its port."""
    if PGBOUNCER is None:
        pytest.skip("PgBouncer is not installed")
    url, port, relay = urlsplit(database_url("x")), free_port(), Relay()
    where = f"host=127.0.0.1 port={relay.port} user={url.username or 'postgres'}"
    where += f" password={url.password}" if url.password else ""
    folder = Path(tempfile.mkdtemp(prefix="bouncer-"))
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = {where}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = any\npool_mode = transaction\nunix_socket_dir =\nlogfile = {folder}/log\n"
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


def _version() -> tuple[int, ...]:
    assert PGBOUNCER
    told = subprocess.run([PGBOUNCER, "--version"], capture_output=True, text=True).stdout
    return tuple(int(number) for number in told.split()[1].split(".")[:2])


def test_a_pgbouncer_without_prepared_statements_is_refused(
    bouncer: int, settings: Any, monkeypatch: pytest.MonkeyPatch, test_environment: dict[str, str]
) -> None:
    keeps = _version() >= (1, 24)  # the default from now on
    name, user = connection.settings_dict["NAME"], connection.settings_dict["USER"] or "postgres"
    reconnect()
    for key, value in {"HOST": "127.0.0.1", "PORT": str(bouncer), "USER": user}.items():
        monkeypatch.setitem(connection.settings_dict, key, value)
    monkeypatch.delitem(connection.settings_dict["OPTIONS"], "options")
    try:
        assert "DB_SESSION_LIMITS" in str(pooler.fault())
        settings.DB_SESSION_LIMITS = False
        assert (pooler.fault() is None) is keeps
    finally:
        monkeypatch.undo()
    if not keeps:
        env = {**test_environment, "DATABASE_URL": f"postgresql://{user}@127.0.0.1:{bouncer}/{name}"}
        with running("dispatcher", "--only", "retention", env={**env, "DB_SESSION_LIMITS": "0"}) as process:
            assert process.ends() != 0
            assert "max_prepared_statements" in process.log()
            assert len(process.log().strip().splitlines()) == 1


@pytest.mark.parametrize("command", [("dispatcher",), ("worker", "dispatch-queue"), ("web", "--port", "0")])
def test_a_process_with_other_keys_refuses_to_start(
    command: tuple[str, ...], test_environment: dict[str, str]
) -> None:
    factories.account(factories.organization())
    env = {**test_environment, "FIELD_ENCRYPTION_KEYS": Fernet.generate_key().decode()}
    with running(*command, env=env) as process:
        assert process.ends() != 0
        (line,) = process.log().strip().splitlines()
        assert "FIELD_ENCRYPTION_KEYS" in line


def test_keys_that_decrypt_and_a_database_that_is_away_are_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    factories.account(factories.organization())
    preflight.check()
    reconnect()
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    preflight.check()
    monkeypatch.undo()
    settings.FIELD_ENCRYPTION_KEYS = [Fernet.generate_key().decode()]
    with pytest.raises(ImproperlyConfigured):
        preflight.check()
    assert [found.id for found in servers(None, databases=["default"]) if found.id == "dispatch.E057"]
