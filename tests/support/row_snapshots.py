"""Write the rows of a slow fixture again without running it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from django.conf import settings
from django.db import connection, models, transaction
from psycopg import sql

from tests.support.database import KEPT

_snapshots: dict[str, tuple[models.Model, dict[str, bytes]]] = {}
Row = TypeVar("Row", bound=models.Model)


def written_once(name: str, write: Callable[[], Row]) -> Row:
    """Return the row that `write` returns. Later calls in this process copy all rows that the first one wrote.

    The database is empty before. Sequences go on, so ids of other rows do not collide.
    """
    if not settings.EMBEDDED_POSTGRES:  # copying needs a superuser
        return write()
    if name not in _snapshots:
        row = write()
        _snapshots[name] = row, _copy_out()
        return row
    kept, tables = _snapshots[name]
    _copy_in(tables)
    return cast(Row, type(kept)._default_manager.get(pk=kept.pk))


def _copy_out() -> dict[str, bytes]:
    tables = {}
    with transaction.atomic(), connection.cursor() as cursor:
        for table in sorted(set(connection.introspection.table_names()) - KEPT):
            copy = sql.SQL("COPY {} TO STDOUT (FORMAT BINARY)").format(sql.Identifier(table))
            with cursor.cursor.copy(copy) as data:
                tables[table] = b"".join(bytes(part) for part in data)
    return tables


def _copy_in(tables: dict[str, bytes]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        # Foreign keys and triggers did their work when the rows were first written.
        cursor.execute("SET LOCAL session_replication_role = replica")
        for table, content in tables.items():
            copy = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(sql.Identifier(table))
            with cursor.cursor.copy(copy) as data:
                data.write(content)
