"""A dump is restored by the commands of docs/operations/backup.md, with a role that may not create databases."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from tests.harness.postgres_pair import BIN, copy_database
from tests.support.processes import ROOT, database_url

pytestmark = pytest.mark.django_db
GUIDE = ROOT / "docs" / "operations" / "backup.md"
NAME = "restored_by_guide"  # in place of the guide's name of the role and the database


@pytest.fixture
def server() -> Iterator[psycopg.Connection]:
    """A superuser's session, with a new role that owns a database of its name."""
    with psycopg.connect(database_url("postgres"), autocommit=True) as session:
        drop(session)
        session.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(NAME)))
        session.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(NAME)))
        yield session
        drop(session)


def drop(session: psycopg.Connection) -> None:
    for name in (NAME, f"{NAME}_old"):
        session.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
    session.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(NAME)))


def url_of_role() -> str:
    url = urlsplit(database_url(NAME))
    return urlunsplit(url._replace(netloc=f"{NAME}:secret@{url.netloc.rpartition('@')[2]}"))


def commands(heading: str) -> list[str]:
    """Return the commands of PostgreSQL in one section of the guide, with this test's names."""
    section = GUIDE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^ {4,}((?:pg_\w+|psql|createdb) .*)$", section, re.MULTILINE)
    named = [re.sub(r"\bdispatch(_old)?\b(?!-)", rf"{NAME}\1", line) for line in found]
    return [re.sub(r"dispatch-.*\.dump", "dispatch.dump", line) for line in named]


def run(lines: list[str], folder: Path) -> None:
    superuser = connection.settings_dict
    host = superuser["HOST"] or superuser["OPTIONS"].get("host", "")
    given = {"PGUSER": superuser["USER"], "PGPASSWORD": superuser["PASSWORD"], "PGHOST": host}
    env = {**os.environ, **given, "PATH": f"{BIN}:{os.environ['PATH']}", "DATABASE_URL": url_of_role()}
    if superuser["PORT"]:
        env["PGPORT"] = str(superuser["PORT"])
    for line in lines:
        done = subprocess.run(["sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def tables() -> list[tuple[str, str]]:
    with psycopg.connect(url_of_role()) as session:
        found = session.execute(
            "SELECT tablename, tableowner FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
        )
        return found.fetchall()


def test_a_dump_is_restored_beside_the_old_database(server: psycopg.Connection, tmp_path: Path) -> None:
    copy_database(database_url(str(connection.settings_dict["NAME"])), url_of_role())
    before = tables()
    assert len(before) > 50
    run(commands("Back up"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["dispatch.dump"]
    run(commands("Restore"), tmp_path)
    assert tables() == before
    assert {owner for _, owner in before} == {NAME}
    old = server.execute("SELECT count(*) FROM pg_database WHERE datname = %s", [f"{NAME}_old"]).fetchone()
    assert old == (1,)
