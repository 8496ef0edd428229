"""An empty database gets its tables from `schema.sql`, which is what the migrations would create."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from dispatch.core.db import initial_schema
from dispatch.core.db.initial_schema import create_tables
from tests.harness.postgres_pair import using
from tests.support.processes import database_url, environment, running

pytestmark = pytest.mark.django_db(transaction=True)


def tables(database: str) -> int:
    with psycopg.connect(database_url(database)) as session:
        (found,) = session.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() or (0,)
    return int(found)


def test_an_empty_database_is_complete_after_one_command(empty_database: str) -> None:
    env = environment(empty_database)
    with running("migrate", env=env) as migrate:
        assert migrate.ends() == 0, migrate.log()
        assert "Created the tables of an empty database" in migrate.log()
        assert "Applying" not in migrate.log()
    for command in (("migrate", "--check"), ("check", "--database", "default")):
        with running(*command, env=env) as process:
            assert process.ends() == 0, process.log()
    with psycopg.connect(database_url(empty_database)) as session:
        assert session.execute("SELECT count(*) > 400 FROM auth_permission").fetchone() == (True,)


@pytest.mark.parametrize(
    "before",
    ["CREATE TABLE mine (id int)", "CREATE SCHEMA other; ALTER ROLE CURRENT_USER SET search_path = other"],
)
def test_a_database_with_other_contents_is_left_to_the_migrations(empty_database: str, before: str) -> None:
    with psycopg.connect(database_url(empty_database)) as session:
        session.execute(before)
        session.commit()
        try:
            found = tables(empty_database)
            with using(database_url(empty_database)):
                assert create_tables(connection) == 0
            assert tables(empty_database) == found
        finally:
            session.execute("ALTER ROLE CURRENT_USER RESET search_path")


def test_older_packages_are_left_to_the_migrations(
    empty_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OlderPackages(MigrationLoader):
        def build_graph(self) -> None:
            super().build_graph()
            self.graph.nodes = {node: each for node, each in self.graph.nodes.items() if node[0] != "mfa"}

    monkeypatch.setattr(initial_schema, "MigrationLoader", OlderPackages)
    with using(database_url(empty_database)):
        assert create_tables(connection) == 0
    assert tables(empty_database) == 0


def test_of_two_processes_one_creates_the_tables(empty_database: str) -> None:
    def create(_: int) -> int:
        try:
            return create_tables(connection)
        finally:
            connection.close()

    with using(database_url(empty_database)), ThreadPoolExecutor(2) as processes:
        created = list(processes.map(create, range(2)))
    assert sorted(count > 0 for count in created) == [False, True]
