"""Find what a migration takes away from processes of the previous version, which run until they are replaced.

Also find what makes PostgreSQL read a large table while nobody else can use it: a CHECK of a column or a table, an
index that is not built concurrently, and rows that a migration changes all in one transaction.

Expand first, contract a release later: a column may go, change its type or demand a value only when no process of
the previous release uses it. A longer varchar is another type too: PostgreSQL refuses each prepared statement that
returns the column, at least once in each session. What is found needs an exception with its reason
(tests/core/test_migrations.py).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently
from django.db import connection
from django.db.migrations import operations
from django.db.migrations.state import ProjectState
from django.db.models import NOT_PROVIDED, CheckConstraint, Func
from django.db.models.functions import Now

_TAKES_AWAY = (
    operations.RemoveField,
    operations.RenameField,
    operations.DeleteModel,
    operations.RenameModel,
    operations.AlterModelTable,
    operations.AlterUniqueTogether,
    operations.AlterOrderWithRespectTo,
)
_SQL = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN|TYPE|VIEW|FUNCTION|SCHEMA|SEQUENCE)|RENAME|SET\s+NOT\s+NULL|DROP\s+DEFAULT"
    r"|(SET\s+DATA\s+)?TYPE\s|ADD\s+(CONSTRAINT|UNIQUE|PRIMARY|EXCLUDE|FOREIGN)|CREATE\s+UNIQUE|TRUNCATE)\b",
    re.IGNORECASE,
)
_ADDED_COLUMN = re.compile(r"\bADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(\w+)\s+([^,;]*)", re.IGNORECASE)
_INDEX = re.compile(
    r"\bCREATE\s+(?:UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)|\bREINDEX\s+(?!.*CONCURRENTLY)", re.IGNORECASE
)
# Not "AFTER UPDATE ON", the event of a trigger.
_WRITE = re.compile(r"\b(UPDATE|DELETE\s+FROM)\s+(?!O[NFR]\b)(?:ONLY\s+)?\"?(\w+)", re.IGNORECASE)
# A CHECK that PostgreSQL validates at once.
_CHECK = re.compile(r"\bCHECK\s*\((?!.*\bNOT\s+VALID\b)", re.IGNORECASE | re.DOTALL)
# Tables that people fill, row by row. All others grow with the work.
SMALL_TABLES = {
    *(("accounts", name) for name in ("organization", "user", "membership", "apikey", "organizationlimits")),
    ("accounts", "retentionrule"),
    *(("capacity", name) for name in ("provideraccount", "dispatchpool", "outboundnumber")),
    *(("jobs", name) for name in ("customertextpolicy", "servicetype", "dispatchpolicy", "publicform")),
    *(("leads", name) for name in ("campaign", "engineswitch", "callingrule", "holiday", "closedday")),
    *(("leads", name) for name in ("retryrule", "customerrate")),
    *(("notifications", name) for name in ("preference", "route", "escalationpolicy", "escalationstep")),
    ("notifications", "alertchannel"),
    *(("outbox", name) for name in ("endpoint", "target")),
    *(("technicians", name) for name in ("skill", "technician", "shift")),
    *(("telephony", name) for name in ("spendcap", "numberhealthpolicy")),
}


def find_contractions(
    app: str, operation: Any, before: ProjectState, created: set[tuple[str, str]]
) -> Iterator[str]:
    """Yield what the operation takes away, in words. `created`: models that the previous version does not have."""
    model = (app, str(getattr(operation, "model_name", "") or getattr(operation, "name", "") or "").lower())
    if isinstance(operation, operations.SeparateDatabaseAndState):
        for inner in operation.database_operations:
            yield from find_contractions(app, inner, before, created)
    elif isinstance(operation, operations.RunSQL):
        statements = [operation.sql] if isinstance(operation.sql, str) else operation.sql
        for statement in statements:
            text = statement if isinstance(statement, str) else statement[0]
            if match := _SQL.search(text):
                yield f"SQL: {' '.join(match[0].split())}"
            for column, definition in _ADDED_COLUMN.findall(text):
                if re.search(r"NOT\s+NULL", definition, re.I) and not re.search(r"DEFAULT", definition, re.I):
                    yield f"SQL: {column} demands a value"
    elif model in created:
        return
    elif isinstance(operation, _TAKES_AWAY):
        yield operation.describe()
    elif isinstance(operation, operations.AddConstraint):
        yield f"{operation.model_name}: constraint {operation.constraint.name}"
    elif isinstance(operation, operations.AddField) and _demands_a_value(operation.field):
        yield f"{operation.model_name}.{operation.name} demands a value"
    elif isinstance(operation, operations.AddField) and operation.field.unique and not operation.field.null:
        yield f"{operation.model_name}.{operation.name} is unique, and has one default for all rows"
    elif isinstance(operation, operations.AlterField):
        old = before.apps.get_model(app, operation.model_name)._meta.get_field(operation.name)
        for change in _changed(old, operation.field):
            yield f"{operation.model_name}.{operation.name} {change}"


def find_table_scans(
    app: str, operation: Any, before: ProjectState, created: set[tuple[str, str]]
) -> Iterator[str]:
    """Yield which CHECKs and indexes of the operation read a large table under an exclusive lock, in words.

    Use a field without a CHECK, or AddConstraintNotValid and, in a later migration, ValidateConstraint. Build an
    index by AddIndexConcurrently in a migration that is not atomic (telephony.0013). `created`: models that the
    previous version does not have.
    """
    if isinstance(operation, operations.SeparateDatabaseAndState):
        for inner in operation.database_operations:
            yield from find_table_scans(app, inner, before, created)
    elif isinstance(operation, operations.RunSQL):
        statements = [operation.sql] if isinstance(operation.sql, str) else operation.sql
        for statement in statements:
            text = statement if isinstance(statement, str) else statement[0]
            if _CHECK.search(text):
                yield "SQL: CHECK"
            if _INDEX.search(text):
                yield "SQL: CREATE INDEX"
    elif (model := (app, str(getattr(operation, "model_name", "")).lower())) in created | SMALL_TABLES:
        return
    elif isinstance(operation, operations.AddField | operations.AlterField):
        field = operation.field.clone()
        field.set_attributes_from_name(operation.name)  # a check names its column
        had_check = isinstance(operation, operations.AlterField) and (
            before.apps.get_model(*model)._meta.get_field(operation.name).db_check(connection)
        )
        if field.db_check(connection) and not had_check:
            yield f"{operation.model_name}.{operation.name}: CHECK"
        had_index = isinstance(operation, operations.AlterField) and _has_index(
            before.apps.get_model(*model)._meta.get_field(operation.name)
        )
        if _has_index(field) and not had_index:
            yield f"{operation.model_name}.{operation.name}: index"
    elif isinstance(operation, AddConstraintNotValid):
        return
    elif isinstance(operation, operations.AddConstraint) and isinstance(operation.constraint, CheckConstraint):
        yield f"{operation.model_name}: CHECK {operation.constraint.name}"
    elif isinstance(operation, operations.AddConstraint):
        yield f"{operation.model_name}: index {operation.constraint.name}"
    elif isinstance(operation, operations.AddIndex) and not isinstance(operation, AddIndexConcurrently):
        yield f"{operation.model_name}: index {operation.index.name}"


def _has_index(field: Any) -> bool:
    return bool(field.db_index or field.unique) and not field.many_to_many


def _demands_a_value(field: Any) -> bool:
    return not (field.null or field.many_to_many or field.db_default is not NOT_PROVIDED)


def _related(field: Any) -> str:
    model = field.remote_field.model
    return (model if isinstance(model, str) else model._meta.label).lower()


def _changed(old: Any, new: Any) -> Iterator[str]:
    # A relation that is not bound to its model cannot tell its type, which changes with the related model only.
    is_same = old.is_relation and new.is_relation and _related(old) == _related(new)
    was, becomes = ("", "") if is_same else (old.db_type(connection) or "", new.db_type(connection) or "")
    if was != becomes:
        yield f"changes its type from {was} to {becomes}"
    if old.null and not new.null:
        yield "demands a value"
    if new.unique and not old.unique:
        yield "becomes unique"
    if old.db_default is not NOT_PROVIDED and new.db_default is NOT_PROVIDED and not new.null:
        yield "loses its default"


def find_long_locks(
    app: str, operation: Any, before: ProjectState, created: set[tuple[str, str]], *, is_atomic: bool = True
) -> Iterator[str]:
    """Yield what of the operation locks a large table, or many of its rows, for as long as it is read, in words.

    Change rows in batches, each in a transaction (`atomic = False`). `created`: models that the previous version
    does not have.
    """
    model = (app, str(getattr(operation, "model_name", "")).lower())
    if isinstance(operation, operations.SeparateDatabaseAndState):
        for inner in operation.database_operations:
            yield from find_long_locks(app, inner, before, created, is_atomic=is_atomic)
    elif isinstance(operation, operations.RunSQL):
        statements = [operation.sql] if isinstance(operation.sql, str) else operation.sql
        for statement in statements:
            yield from _long_locks_of_sql(statement if isinstance(statement, str) else statement[0], created)
    elif isinstance(operation, operations.RunPython):
        if is_atomic and operation.atomic is not False:
            yield from _large_models_of(operation.code, created)
    elif model in created | SMALL_TABLES:
        return
    elif isinstance(operation, operations.AddField) and _rewrites_the_table(operation.field):
        yield f"{operation.model_name}.{operation.name}: computed for every row"


def _long_locks_of_sql(text: str, created: set[tuple[str, str]]) -> Iterator[str]:
    small = {f"{app}_{name}" for app, name in created | SMALL_TABLES}
    for verb, table in _WRITE.findall(text):
        if table.lower() not in small | {"set"} and "WHERE" not in text.upper():
            yield f"SQL: {verb.split()[0].upper()} of every row of {table}"


def _large_models_of(code: Any, created: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the large models that a function of a migration uses by name."""
    source = inspect.getsource(code) if inspect.isfunction(code) and code is not operations.RunPython.noop else ""
    for app, name in re.findall(r"get_model\(\s*\"(\w+)\",\s*\"(\w+)\"", source):
        if (app, name.lower()) not in created | SMALL_TABLES:
            yield f"{code.__name__} uses {app}.{name} in one transaction"


def _rewrites_the_table(field: Any) -> bool:
    """Return whether PostgreSQL computes the new column for every existing row."""
    if field.generated:
        return bool(field.db_persist)
    default = field.db_default
    return default is not NOT_PROVIDED and isinstance(default, Func) and not isinstance(default, Now)
