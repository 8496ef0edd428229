"""A database that an earlier version migrated is brought up to date by `manage.py migrate`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, models
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from psycopg import sql

from tests.support.expand_only import find_contractions
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


# What a migration takes away although the previous version runs beside it: (migration, what) → why it may.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("leads.0003_dry_run_and_duplicate_indexes", "SQL: CREATE UNIQUE"): (
        "The index covers only rows with the new column is_only_of_phone, which the previous version leaves null."
    ),
    ("jobs.0009_offer_slots", "SQL: CREATE UNIQUE"): (
        "The previous version writes slot 0 only, for which the index forbids what the former one forbade."
    ),
}


def later_contractions() -> Iterator[tuple[str, str]]:
    """Yield what this project's migrations after the first release take away, with the migration."""
    loader = MigrationLoader(None)
    created: set[tuple[str, str]] = set()
    for app, name in loader.graph._generate_plan(loader.graph.leaf_nodes(), at_end=True):
        migration = loader.graph.nodes[app, name]
        if not migration.__module__.startswith(("dispatch.", "accounts.", "notifications.")) or "0001" in name:
            continue
        state = loader.project_state((app, name), at_end=False)
        for operation in migration.operations:
            for found in find_contractions(app, operation, state, created):
                yield f"{app}.{name}", found
            if isinstance(operation, operations.CreateModel):
                created.add((app, operation.name.lower()))
            operation.state_forwards(app, state)


def test_migrations_only_expand_the_schema() -> None:
    """Processes of the previous version keep working while the new version's migrations are applied."""
    found = set(later_contractions())
    assert found - set(EXCEPTIONS) == set(), "Expand now and contract a release later, or give an exception."
    assert set(EXCEPTIONS) <= found, "An exception is no longer needed."
    assert all(len(reason.split()) > 3 for reason in EXCEPTIONS.values())


def test_no_column_added_to_a_large_table_has_a_check() -> None:
    """PostgreSQL reads the whole table for a new CHECK, and nothing else can use the table meanwhile."""
    large = {("leads", "lead"), ("outbox", "message"), ("schedules", "schedule"), ("schedules", "run")}
    checked = []
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        for operation in migration.operations:
            if isinstance(operation, operations.AddField) and (app, operation.model_name_lower) in large:
                field = operation.field.clone()
                field.set_attributes_from_name(operation.name)  # a check names its column
                checked += [f"{app}.{name}: {field.name}"] if field.db_check(connection) else []
    assert checked == []


@pytest.fixture(scope="module")
def first_outbox() -> ProjectState:
    return MigrationLoader(None).project_state(("outbox", "0001_initial"))


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        (operations.RemoveField("endpoint", "name"), ["Remove field name from endpoint"]),
        (operations.RenameField("endpoint", "name", "label"), ["Rename field name on endpoint to label"]),
        (operations.DeleteModel("Endpoint"), ["Delete model Endpoint"]),
        (operations.RenameModel("Endpoint", "Receiver"), ["Rename model Endpoint to Receiver"]),
        (operations.AlterField("endpoint", "name", models.TextField()), []),
        (
            operations.AlterField("endpoint", "name", models.CharField(max_length=1)),
            ["endpoint.name changes its type from varchar(80) to varchar(1)"],
        ),
        (operations.AlterField("endpoint", "name", models.CharField(max_length=80, choices=[("a", "A")])), []),
        (
            operations.AlterField("endpoint", "name", models.CharField(max_length=80, unique=True)),
            ["endpoint.name becomes unique"],
        ),
        (operations.AddField("endpoint", "extra", models.TextField()), ["endpoint.extra demands a value"]),
        (
            operations.AddField("endpoint", "extra", models.TextField(default="")),
            ["endpoint.extra demands a value"],
        ),
        (operations.AddField("endpoint", "extra", models.TextField(db_default="")), []),
        (operations.AddField("endpoint", "extra", models.TextField(null=True)), []),
        (operations.AddField("new", "extra", models.TextField()), []),
        (
            operations.AddConstraint("endpoint", models.CheckConstraint(condition=models.Q(pk=1), name="one")),
            ["endpoint: constraint one"],
        ),
        (operations.RunSQL("ALTER TABLE a\n  DROP COLUMN b"), ["SQL: DROP COLUMN"]),
        (operations.RunSQL(["ALTER TABLE a ALTER b SET NOT NULL"]), ["SQL: SET NOT NULL"]),
        (operations.RunSQL("UPDATE a SET b = ''"), []),
        (
            operations.SeparateDatabaseAndState(database_operations=[operations.RemoveField("endpoint", "name")]),
            ["Remove field name from endpoint"],
        ),
        (operations.SeparateDatabaseAndState(state_operations=[operations.RemoveField("endpoint", "name")]), []),
    ],
)
def test_what_takes_something_away_is_found(operation: Any, found: list[str], first_outbox: ProjectState) -> None:
    assert list(find_contractions("outbox", operation, first_outbox, {("outbox", "new")})) == found


def test_columns_that_demand_a_value_or_lose_their_default_are_found() -> None:
    state = ProjectState()
    fields = {
        "id": models.AutoField(primary_key=True),
        "a": models.TextField(null=True),
        "b": models.TextField(db_default=""),
    }
    operations.CreateModel("Row", list(fields.items())).state_forwards("x", state)
    changed = [operations.AlterField("row", name, models.TextField()) for name in ("a", "b")]
    found = [list(find_contractions("x", operation, state, set())) for operation in changed]
    assert found == [["row.a demands a value"], ["row.b loses its default"]]
