"""The template of the test databases is created once, however many processes start, and never half."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support import migrated_template
from tests.support.migrated_template import create_template
from tests.support.processes import database_url


class Migrations:
    """Migrations that create one table, and count how often they ran."""

    def __init__(self) -> None:
        self.runs, self._url = 0, ""

    @contextmanager
    def using(self, url: str) -> Iterator[None]:
        self._url = url
        yield

    def run(self, *_: Any, **__: Any) -> None:
        self.runs += 1
        with psycopg.connect(self._url) as database:
            database.execute("CREATE TABLE migrated (id int)")
            database.execute("INSERT INTO migrated VALUES (7)")


@pytest.fixture
def migrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Migrations]:
    made = Migrations()
    monkeypatch.setattr(migrated_template, "PREFIX", "test_template_")
    monkeypatch.setattr(migrated_template, "using", made.using)
    monkeypatch.setattr(migrated_template, "call_command", made.run)
    yield made
    drop_databases()


def drop_databases() -> None:
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        found = server.execute("SELECT datname FROM pg_database WHERE starts_with(datname, 'test_template_')")
        for (name,) in found.fetchall():
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def rows(name: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database_url(name)) as database:
        return database.execute("SELECT id FROM migrated").fetchall()


def test_processes_that_start_at_once_share_one_template(migrations: Migrations) -> None:
    with ThreadPoolExecutor(3) as pool:
        names = {each.result() for each in [pool.submit(create_template) for _ in range(3)]}
    assert (len(names), migrations.runs) == (1, 1)
    assert rows(names.pop()) == [(7,)]


def test_nothing_half_migrated_is_used(migrations: Migrations, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        migrations.run()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(migrated_template, "call_command", fail)
        with pytest.raises(KeyboardInterrupt):
            create_template()
    assert rows(create_template()) == [(7,)]
    assert migrations.runs == 2
