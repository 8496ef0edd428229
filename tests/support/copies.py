"""Copy rows by the thousand."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import connection
from django.db.models import Model


def copy_row(row: Model, count: int, values: Mapping[str, str] | None = None, source: str = "") -> int:
    """Insert copies of a row, and return how many could be inserted.

    `values` has SQL expressions for columns, where `n` is the number of the copy and `t` is the row. `source` adds
    tables to the FROM clause, with the condition `place = n`.
    """
    meta, values = row._meta, values or {}
    columns = [field.column for field in meta.concrete_fields if not field.primary_key]
    selected = [values.get(column, f"t.{column}") for column in columns]
    joined = f"{source} WHERE place = n" if source else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {meta.db_table} ({', '.join(columns)}) SELECT {', '.join(selected)}"
            f" FROM (SELECT * FROM {meta.db_table} WHERE id = %s) t, generate_series(1, %s) n{joined}"
            " ON CONFLICT DO NOTHING",
            [row.pk, count],
        )
        return int(cursor.rowcount)
