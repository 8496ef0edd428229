"""A database that an earlier version migrated is brought up to date by `manage.py migrate`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED
from psycopg import sql

from tests.support.processes import database_url, environment, running

# Migrate every app of this project to its first migration only, as version 0.1.0 left it.
FIRST_RELEASE = """
from django.apps import apps
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

executor = MigrationExecutor(connection)
names = (app.label for app in apps.get_app_configs() if app.name.startswith("dispatch."))
project = ("accounts", "notifications", *names)
leaves = [node for node in executor.loader.graph.leaf_nodes() if node[0] not in project]
first = [node for node in executor.loader.graph.nodes if node[0] in project and node[1].startswith("0001")]
executor.migrate(first + leaves)
"""


@pytest.fixture
def empty_database() -> Iterator[str]:
    name = f"test_migrations_{secrets.token_hex(4)}"
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_database_of_first_release_is_migrated(empty_database: str) -> None:
    env = environment(empty_database)
    with running("shell", "-v0", "-c", FIRST_RELEASE, env=env) as old:
        assert old.ends() == 0, old.log()
    with running("migrate", "--check", env=env) as pending:
        assert pending.ends() == 1, pending.log()
    with running("migrate", env=env) as migrate:
        assert migrate.ends() == 0, migrate.log()
    with running("check", "--database", "default", env=env) as check:
        assert check.ends() == 0, check.log()


def later_operations() -> Iterator[tuple[str, Any]]:
    """Yield the operations of this project's migrations after the first release."""
    loader = MigrationLoader(None)
    for (app, name), migration in sorted(loader.disk_migrations.items()):
        if migration.__module__.startswith(("dispatch.", "accounts.", "notifications.")) and "0001" not in name:
            for operation in migration.operations:
                yield f"{app}.{name}", operation


def test_migrations_only_expand_the_schema() -> None:
    """Processes of the previous version keep working while the new version's migrations are applied."""
    contracting = (operations.RemoveField, operations.RenameField, operations.DeleteModel, operations.RenameModel)
    assert [place for place, operation in later_operations() if isinstance(operation, contracting)] == []


def test_added_columns_accept_rows_of_the_previous_version() -> None:
    created = {op.name.lower() for _, op in later_operations() if isinstance(op, operations.CreateModel)}
    added = [(place, op) for place, op in later_operations() if isinstance(op, operations.AddField)]
    assert added
    required = [
        f"{place}: {op.model_name}.{op.name}"
        for place, op in added
        if op.model_name not in created
        and not op.field.null
        and not op.field.many_to_many
        and op.field.db_default is NOT_PROVIDED
    ]
    assert required == [], "Give these columns a database default, or let them be null."
