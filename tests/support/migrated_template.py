"""Migrate a database once, and use copies of it as the test databases.

The template is named after a digest of the code, so a later run with the same code uses it, too.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import django
import psycopg
from django.core.management import call_command
from psycopg import sql

from tests.harness.postgres_pair import using
from tests.support.processes import ROOT, database_url

PREFIX = "migrated_"


def create_template() -> str:
    """Return the name of a migrated database on this process's server; create it if it does not exist.

    Databases of other code are deleted. Processes that share a server wait for each other. A killed one leaves
    nothing that a later one would use.
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
        with using(database_url(unfinished)):
            call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        server.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(name)))
    return name


def _digest_code() -> str:
    """Return a digest of all code that a migration can use: this project's, and the versions of the packages."""
    digest = hashlib.sha256()
    for package in ("accounts", "dispatch", "notifications"):
        for path in sorted([*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.sql")]):
            with suppress(FileNotFoundError):  # an editor's temporary file
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    packages = Path(django.__file__).parents[1]
    digest.update(" ".join(sorted(path.name for path in packages.glob("*.dist-info"))).encode())
    return digest.hexdigest()[:16]
