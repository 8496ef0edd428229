"""A database that an earlier version migrated is brought up to date by `manage.py migrate`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from io import StringIO
from typing import Any, NamedTuple

import psycopg
import pytest
from django.apps import apps
from django.contrib.postgres.functions import RandomUUID
from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently
from django.core.management import CommandError, call_command
from django.core.management.commands import migrate
from django.db import OperationalError, connection, models, transaction
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models.functions import Now

from dispatch.core.db.errors import sqlstate
from dispatch.core.db.initial_schema import SCHEMA
from dispatch.core.management.commands import migrate as command
from tests.harness.postgres_pair import using
from tests.initial_schema import dump
from tests.support.expand_only import SMALL_TABLES, find_contractions, find_long_locks, find_table_scans
from tests.support.processes import database_url, environment, running
from tests.support.waiting import PATIENCE, wait_until

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


def test_database_of_first_release_is_migrated(empty_database: str) -> None:
    env = environment(empty_database)
    with running("shell", "-v0", "-c", FIRST_RELEASE, env=env) as old:
        assert old.ends() == 0, old.log()
    with running("migrate", "--check", env=env) as pending:
        assert pending.ends() == 1, pending.log()
    with psycopg.connect(database_url(empty_database)) as busy:  # a process of the first release reads calls
        busy.execute("LOCK TABLE telephony_call IN ACCESS SHARE MODE")
        with running("migrate", "--lock-timeout", "0.1", env=env) as migrate:
            migrate.says("Locked by a running process (lock timeout). Attempt 2")
            busy.rollback()
            assert migrate.ends(timeout=3 * PATIENCE) == 0, migrate.log()
    with running("check", "--database", "default", env=env) as check:
        assert check.ends() == 0, check.log()
    # An empty database gets its tables from this file: `python -m tests.initial_schema` writes it.
    assert dump(empty_database) == SCHEMA.read_text()


def refuse(times: int, error: type[psycopg.Error]) -> Any:
    """Return a replacement of Django's migration that fails this many times, and then returns how often it ran."""
    calls = []

    def handle(self: Any, *args: Any, **options: Any) -> str:
        calls.append(options)
        if len(calls) <= times:
            raise OperationalError("refused") from error("refused")
        return f"{len(calls)} attempts"

    return handle


@pytest.mark.django_db
def test_migration_is_repeated_after_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(migrate.Command, "handle", refuse(3, psycopg.errors.DeadlockDetected))
    out = StringIO()
    assert call_command("migrate", stdout=out) == "4 attempts"
    assert out.getvalue().count("Locked by a running process (deadlock).") == 3


@pytest.mark.django_db
def test_migration_gives_up_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate.Command, "handle", refuse(1, psycopg.errors.LockNotAvailable))
    with pytest.raises(CommandError, match="Another session has locked a table for 0 s"):
        call_command("migrate", give_up_after=0.0)


@pytest.mark.django_db
def test_migration_does_not_repeat_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate.Command, "handle", refuse(1, psycopg.errors.UndefinedTable))
    with pytest.raises(OperationalError):
        call_command("migrate")


@pytest.mark.django_db(transaction=True)
def test_only_statements_that_lock_others_out_have_a_lock_timeout() -> None:
    def limit(comment: str = "") -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT current_setting('lock_timeout') {comment}")
            return str(cursor.fetchone()[0])

    before = limit()
    with command._lock_timeout(connection, 1.5):
        assert limit() == "1500ms"
        assert limit("-- CREATE INDEX CONCURRENTLY") == "0"
        assert limit() == "1500ms"
    assert limit() == before


@pytest.mark.django_db(transaction=True)
def test_a_migration_gives_way_to_a_process_that_would_deadlock_with_it(empty_database: str) -> None:
    """A running process has read a row of one table, and waits for another that the migration has locked."""
    with psycopg.connect(database_url(empty_database)) as process, ThreadPoolExecutor(1) as waiting:
        process.execute("CREATE TABLE first (id int); CREATE TABLE second (id int)")
        process.commit()
        process.execute("SELECT FROM second")
        with using(database_url(empty_database)), command._lock_timeout(connection, command.LOCK_TIMEOUT_S):
            with pytest.raises(OperationalError) as refused, transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("ALTER TABLE first ADD COLUMN extra int")
                read = waiting.submit(process.execute, "SELECT FROM first")
                wait_until(lambda: waits_for_a_lock(process.info.backend_pid))
                cursor.execute("ALTER TABLE second ADD COLUMN extra int")
            assert sqlstate(refused.value) == "55P03"
            assert read.result(PATIENCE).rowcount == 0  # and was no victim of the deadlock


@pytest.mark.django_db(transaction=True)
def test_a_repeated_migration_begins_with_the_table_at_which_it_failed(empty_database: str) -> None:
    """Processes that use the second table wait for the first: a migration that has it never gets the second."""
    contended: list[str] = []
    statements: list[str] = []

    def record(run: Any, statement: Any, *args: Any) -> Any:
        statements.extend([str(statement)] * str(statement).startswith(("LOCK", "ALTER")))
        return run(statement, *args)

    with psycopg.connect(database_url(empty_database)) as process, using(database_url(empty_database)):
        process.execute('CREATE TABLE "first" (id int); CREATE TABLE "second" (id int)')
        process.commit()

        def migrate_both() -> None:
            limits = command._lock_timeout(connection, 0.2, 0.1, contended)
            with limits, connection.execute_wrapper(record), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute('ALTER TABLE "first" ADD COLUMN extra int')
                cursor.execute('ALTER TABLE "second" ADD COLUMN extra int')

        process.execute("SELECT FROM second")
        with pytest.raises(OperationalError):
            migrate_both()
        assert contended == ["second"]
        statements.clear()
        with pytest.raises(OperationalError):
            migrate_both()
        process.rollback()
        migrate_both()
    assert statements == [
        'LOCK TABLE "second" IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE "second" IN ACCESS EXCLUSIVE MODE',
        'ALTER TABLE "first" ADD COLUMN extra int',
        'ALTER TABLE "second" ADD COLUMN extra int',
    ]


def waits_for_a_lock(pid: int) -> bool:
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
        row = server.execute(waits, [pid]).fetchone()
    return bool(row and row[0])


# What a migration takes away although the previous version runs beside it: (migration, what) → why it may.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("leads.0003_dry_run_and_duplicate_indexes", "SQL: CREATE UNIQUE"): (
        "The index covers only rows with the new column is_only_of_phone, which the previous version leaves null."
    ),
    ("jobs.0009_offer_slots", "SQL: CREATE UNIQUE"): (
        "The previous version writes slot 0 only, for which the index forbids what the former one forbade."
    ),
    ("notifications.0006_chat_channels", "SQL: CREATE UNIQUE"): (
        "The previous version leaves destination null and sets user: the indexes forbid what was forbidden."
    ),
    ("notifications.0006_chat_channels", "SQL: ADD CONSTRAINT"): (
        "It uses the index that was built before, and forbids what the former constraint forbade."
    ),
    ("schedules.0007_concurrency_limits", "SQL: CREATE UNIQUE"): (
        "The index covers only runs with the new column concurrency_slot, which the previous version leaves null."
    ),
    (
        "schedules.0004_overlap_jitter_cancellation",
        "schedule.overlap changes its type from varchar(8) to varchar(16)",
    ): (
        "Statements that start runs and apply their reports return it. What PostgreSQL refuses is repeated, on a "
        "new connection in the end."
    ),
    ("schedules.0006_rules_payloads_and_deferrals", "schedule: constraint schedule_has_one_timing"): (
        "It demands of rows with the new column rrule left empty what the constraint that it replaces demanded."
    ),
}


# What locks a large table for long: (migration, what) → why it may.
LONG_LOCKS: dict[tuple[str, str], str] = {
    ("core.0004_audit_redactions_and_restarts", "sign_known_redactions uses core.Event in one transaction"): (
        "It only reads events, and writes rows of a new table that nobody reads yet."
    ),
}


class Changes(NamedTuple):
    """What migrations after the first release do: pairs of the migration and what it does."""

    contractions: set[tuple[str, str]]
    scans: set[tuple[str, str]]
    long_locks: set[tuple[str, str]]


@cache
def later_changes() -> Changes:
    """Return what this project's migrations after the first release do to processes that run."""
    contractions: set[tuple[str, str]] = set()
    scans: set[tuple[str, str]] = set()
    long_locks: set[tuple[str, str]] = set()
    loader = MigrationLoader(None)
    created: set[tuple[str, str]] = set()
    for app, name in loader.graph._generate_plan(loader.graph.leaf_nodes(), at_end=True):
        migration = loader.graph.nodes[app, name]
        if not migration.__module__.startswith(("dispatch.", "accounts.", "notifications.")) or "0001" in name:
            continue
        state = loader.project_state((app, name), at_end=False)
        for operation in migration.operations:
            found = find_contractions(app, operation, state, created)
            contractions |= {(f"{app}.{name}", change) for change in found}
            scans |= {(f"{app}.{name}", scan) for scan in find_table_scans(app, operation, state, created)}
            locks = find_long_locks(app, operation, state, created, is_atomic=migration.atomic)
            long_locks |= {(f"{app}.{name}", lock) for lock in locks}
            if isinstance(operation, operations.CreateModel):
                created.add((app, operation.name.lower()))
            operation.state_forwards(app, state)
    return Changes(contractions, scans, long_locks)


def test_migrations_only_expand_the_schema() -> None:
    """Processes of the previous version keep working while the new version's migrations are applied."""
    found = later_changes().contractions
    assert found - set(EXCEPTIONS) == set(), "Expand now and contract a release later, or give an exception."
    assert set(EXCEPTIONS) <= found, "An exception is no longer needed."
    assert all(len(reason.split()) > 3 for reason in EXCEPTIONS.values())


def test_migrations_never_read_a_large_table_under_an_exclusive_lock() -> None:
    assert later_changes().scans == set()


def test_migrations_never_lock_a_large_table_for_long() -> None:
    found = later_changes().long_locks
    assert found - set(LONG_LOCKS) == set(), "Change rows in batches."
    assert set(LONG_LOCKS) <= found, "An exception is no longer needed."
    assert all(len(reason.split()) > 3 for reason in LONG_LOCKS.values())


def test_each_table_is_large_unless_people_fill_it() -> None:
    """A new model is large by default; the list of small ones names only models that exist."""
    models = {(model._meta.app_label, model._meta.model_name) for model in apps.get_models()}
    assert models >= SMALL_TABLES


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        (
            operations.AddField("message", "extra", models.PositiveIntegerField(null=True)),
            ["message.extra: CHECK"],
        ),
        (operations.AddField("message", "extra", models.IntegerField(null=True)), []),
        (operations.AddField("endpoint", "extra", models.PositiveIntegerField(null=True)), []),  # a small table
        (operations.AddField("new", "extra", models.PositiveIntegerField(null=True)), []),
        (
            operations.AlterField("message", "mode", models.PositiveIntegerField(default=0)),
            ["message.mode: CHECK"],
        ),
        (operations.AlterField("message", "attempts", models.PositiveIntegerField(default=1)), []),
        (
            operations.AddConstraint("message", models.CheckConstraint(condition=models.Q(pk=1), name="one")),
            ["message: CHECK one"],
        ),
        (
            AddConstraintNotValid("message", models.CheckConstraint(condition=models.Q(pk=1), name="one")),
            [],
        ),
        (operations.RunSQL("ALTER TABLE outbox_message ADD CONSTRAINT a CHECK (b > 0)"), ["SQL: CHECK"]),
        (operations.RunSQL("ALTER TABLE outbox_message ADD CONSTRAINT a CHECK (b > 0) NOT VALID"), []),
        (operations.RunSQL("ALTER TABLE outbox_message ADD COLUMN b int NULL CHECK (b > 0)"), ["SQL: CHECK"]),
        (operations.RunSQL("ALTER TABLE outbox_message VALIDATE CONSTRAINT a"), []),
        (
            operations.AddIndex("message", models.Index(fields=["mode"], name="of_mode")),
            ["message: index of_mode"],
        ),
        (operations.AddIndex("endpoint", models.Index(fields=["name"], name="of_name")), []),  # a small table
        (operations.AddIndex("new", models.Index(fields=["name"], name="of_name")), []),
        (AddIndexConcurrently("message", models.Index(fields=["mode"], name="of_mode")), []),
        (
            operations.AddField("message", "extra", models.IntegerField(null=True, db_index=True)),
            ["message.extra: index"],
        ),
        (operations.AlterField("message", "mode", models.CharField(unique=True)), ["message.mode: index"]),
        (
            operations.AddConstraint("message", models.UniqueConstraint(fields=["mode"], name="one_mode")),
            ["message: index one_mode"],
        ),
        (operations.RunSQL("CREATE UNIQUE INDEX a ON outbox_message (b)"), ["SQL: CREATE INDEX"]),
        (operations.RunSQL("CREATE UNIQUE INDEX CONCURRENTLY a ON outbox_message (b)"), []),
        (
            operations.SeparateDatabaseAndState(
                [operations.AddField("message", "extra", models.PositiveIntegerField(null=True))]
            ),
            ["message.extra: CHECK"],
        ),
    ],
)
def test_what_reads_a_large_table_is_found(operation: Any, found: list[str], first_outbox: ProjectState) -> None:
    assert list(find_table_scans("outbox", operation, first_outbox, {("outbox", "new")})) == found


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
        (
            operations.AlterField("endpoint", "name", models.TextField()),
            ["endpoint.name changes its type from varchar(80) to text"],
        ),
        (
            operations.AlterField("endpoint", "name", models.CharField(max_length=81)),
            ["endpoint.name changes its type from varchar(80) to varchar(81)"],
        ),
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
        (operations.RunSQL("ALTER TABLE a ADD COLUMN b int NOT NULL"), ["SQL: b demands a value"]),
        (operations.RunSQL("ALTER TABLE a ADD COLUMN b int NOT NULL DEFAULT 0"), []),
        (operations.RunSQL("ALTER TABLE a ADD UNIQUE (b)"), ["SQL: ADD UNIQUE"]),
        (operations.RunSQL("ALTER TABLE a ALTER b TYPE bigint"), ["SQL: TYPE"]),
        (operations.AlterModelTable("endpoint", "receivers"), ["Rename table for endpoint to receivers"]),
        (
            operations.AlterOrderWithRespectTo("message", "endpoint"),
            ["Set order_with_respect_to on message to endpoint"],
        ),
        (
            operations.AddConstraint("endpoint", models.UniqueConstraint(fields=["name"], name="one")),
            ["endpoint: constraint one"],
        ),
        (
            operations.AddField("endpoint", "extra", models.TextField(db_default="", unique=True)),
            ["endpoint.extra is unique, and has one default for all rows"],
        ),
        (
            operations.SeparateDatabaseAndState(database_operations=[operations.RemoveField("endpoint", "name")]),
            ["Remove field name from endpoint"],
        ),
        (operations.SeparateDatabaseAndState(state_operations=[operations.RemoveField("endpoint", "name")]), []),
    ],
)
def test_what_takes_something_away_is_found(operation: Any, found: list[str], first_outbox: ProjectState) -> None:
    assert list(find_contractions("outbox", operation, first_outbox, {("outbox", "new")})) == found


def change_messages(apps: Any, schema_editor: Any) -> None:
    apps.get_model("outbox", "Message").objects.update(attempts=0)


def change_endpoints(apps: Any, schema_editor: Any) -> None:
    apps.get_model("outbox", "Endpoint").objects.update(name="")


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        (operations.AddField("message", "extra", models.IntegerField(null=True)), []),
        (
            operations.AddField("message", "extra", models.UUIDField(db_default=RandomUUID())),
            ["message.extra: computed for every row"],
        ),
        (operations.AddField("message", "extra", models.DateTimeField(db_default=Now())), []),
        (
            operations.RunSQL("UPDATE outbox_message SET attempts = 0"),
            ["SQL: UPDATE of every row of outbox_message"],
        ),
        (operations.RunSQL("UPDATE outbox_endpoint SET name = ''"), []),
        (operations.RunPython(change_messages), ["change_messages uses outbox.Message in one transaction"]),
        (operations.RunPython(change_messages, atomic=False), []),
        (operations.RunPython(change_endpoints), []),
    ],
)
def test_what_locks_a_large_table_for_long_is_found(
    operation: Any, found: list[str], first_outbox: ProjectState
) -> None:
    assert list(find_long_locks("outbox", operation, first_outbox, {("outbox", "new")})) == found


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
