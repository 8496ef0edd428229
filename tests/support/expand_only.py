"""Find what a migration takes away from processes of the previous version, which run until they are replaced.

Also find what makes PostgreSQL read a large table while nobody else can write or use it: a CHECK of a column or a
table, and an index that is not built concurrently.

Expand first, contract a release later: a column may go, change its type or demand a value only when no process of
the previous release uses it. What is found needs an exception with its reason (tests/core/test_migrations.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently
from django.db import connection
from django.db.migrations import operations
from django.db.migrations.state import ProjectState
from django.db.models import NOT_PROVIDED, CheckConstraint

_TAKES_AWAY = (
    operations.RemoveField,
    operations.RenameField,
    operations.DeleteModel,
    operations.RenameModel,
    operations.AlterModelTable,
    operations.AlterUniqueTogether,
)
_SQL = re.compile(
    r"\b(DROP\s+(TABLE|COLUMN|TYPE|VIEW|FUNCTION)|RENAME|SET\s+NOT\s+NULL|DROP\s+DEFAULT|(SET\s+DATA\s+)?TYPE\s"
    r"|ADD\s+CONSTRAINT|CREATE\s+UNIQUE|TRUNCATE)\b",
    re.IGNORECASE,
)
# A CHECK that PostgreSQL validates at once.
_CHECK = re.compile(r"\bCHECK\s*\((?!.*\bNOT\s+VALID\b)", re.IGNORECASE | re.DOTALL)
# An index that PostgreSQL builds while nobody writes.
_INDEX = re.compile(r"\bCREATE\s+(UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY\b)", re.IGNORECASE)
# Tables that people fill, row by row. All others grow with the work.
SMALL_TABLES = {
    *(("accounts", name) for name in ("organization", "user", "membership", "apikey", "organizationlimits")),
    ("accounts", "retentionrule"),
    *(("capacity", name) for name in ("provideraccount", "dispatchpool", "outboundnumber")),
    *(("jobs", name) for name in ("customertextpolicy", "servicetype", "dispatchpolicy", "publicform")),
    *(("leads", name) for name in ("campaign", "engineswitch", "callingrule", "holiday", "closedday")),
    *(("leads", name) for name in ("retryrule", "customerrate")),
    *(("notifications", name) for name in ("preference", "route", "escalationpolicy", "escalationstep")),
    *(("outbox", name) for name in ("endpoint", "target")),
    *(("technicians", name) for name in ("skill", "technician", "shift")),
    *(("telephony", name) for name in ("spendcap", "numberhealthpolicy")),
}
_TEXT = re.compile(r"varchar\((\d+)\)")


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
    elif model in created:
        return
    elif isinstance(operation, _TAKES_AWAY):
        yield operation.describe()
    elif isinstance(operation, operations.AddConstraint):
        yield f"{operation.model_name}: constraint {operation.constraint.name}"
    elif isinstance(operation, operations.AddField) and _demands_a_value(operation.field):
        yield f"{operation.model_name}.{operation.name} demands a value"
    elif isinstance(operation, operations.AlterField):
        old = before.apps.get_model(app, operation.model_name)._meta.get_field(operation.name)
        for change in _narrowed(old, operation.field):
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
    return bool(field.db_index or field.unique)


def _demands_a_value(field: Any) -> bool:
    return not (field.null or field.many_to_many or field.db_default is not NOT_PROVIDED)


def _narrowed(old: Any, new: Any) -> Iterator[str]:
    was, becomes = old.db_type(connection) or "", new.db_type(connection) or ""
    widths = _TEXT.fullmatch(was), _TEXT.fullmatch(becomes)
    is_wider = bool(widths[0] and (becomes == "text" or (widths[1] and int(widths[1][1]) >= int(widths[0][1]))))
    if was != becomes and not is_wider:
        yield f"changes its type from {was} to {becomes}"
    if old.null and not new.null:
        yield "demands a value"
    if new.unique and not old.unique:
        yield "becomes unique"
    if old.db_default is not NOT_PROVIDED and new.db_default is NOT_PROVIDED and not new.null:
        yield "loses its default"
