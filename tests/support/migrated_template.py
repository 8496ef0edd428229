"""Migrate a database once, and use copies of it as the test databases.

All migrations take about twenty CPU-seconds, because Django renders the models repeatedly; loading a dump of their
result takes one. The processes of a parallel run have a server each. The first one writes the dump, and the others
load it. The dump is named after a digest of the code, so a later run with the same code uses it, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import django
import psycopg
from django.core.management import call_command
from psycopg import sql

from tests.harness.postgres_pair import BIN, using
from tests.support.processes import ROOT, database_url

PREFIX = "migrated_"


def create_template(folder: Path) -> str:
    """Return the name of a migrated database on this process's server; create it if it does not exist.

    `folder` has the dump that the processes of a run share. Databases and dumps of other code are deleted.
    Processes that share a server wait for each other. A killed one leaves nothing that a later one would use.
    """
    name = PREFIX + _digest_code()
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        server.execute("SELECT pg_advisory_lock(hashtext(%s))", [PREFIX])  # released with the connection
        query = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
        found = {row[0] for row in server.execute(query, [PREFIX])}
        for other in found - {name}:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(other)))
        if name in found:
            return name
        unfinished = f"{PREFIX}unfinished"  # dropped by the next run if this one is killed, and never used
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unfinished)))
        _fill(unfinished, folder / f"{name}.sql")
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        server.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(name)))
    return name


def _fill(database: str, dump: Path) -> None:
    """Load the dump into the empty database; if there is none, migrate the database, and write the dump."""
    with _locked(dump.parent / f"{PREFIX}lock"):
        if not dump.exists():
            with using(database_url(database)):
                call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
            partial = dump.parent / f"{PREFIX}partial"  # renamed when it is complete
            options = ("--no-owner", "--no-privileges", "--file", str(partial))
            subprocess.run([str(BIN / "pg_dump"), *options, "--dbname", database_url(database)], check=True)
            for other in dump.parent.glob(f"{PREFIX}*.sql"):
                other.unlink()
            partial.rename(dump)
            return
        content = dump.open("rb")  # readable even if a run of other code deletes the file now
    with content:
        options = ("-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "--output", os.devnull, "--file", "-")
        subprocess.run(
            [str(BIN / "psql"), *options, "--dbname", database_url(database)], stdin=content, check=True
        )


def _digest_code() -> str:
    """Return a digest of all code that a migration can use: this project's, and the versions of the packages."""
    digest = hashlib.sha256()
    for package in ("accounts", "dispatch", "notifications"):
        for path in sorted((ROOT / package).rglob("*.py")):
            with suppress(FileNotFoundError):  # an editor's temporary file
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    packages = Path(django.__file__).parents[1]
    digest.update(" ".join(sorted(path.name for path in packages.glob("*.dist-info"))).encode())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
