"""Whole rows of models by statements that are written once, for hot paths.

The ORM builds each statement anew, which costs several times what the statement itself does. These read and write
what the ORM would, one row at a time, without signals, default orderings and joins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from django.db import DatabaseError, connection
from django.db.models import Field, Model

M = TypeVar("M", bound=Model)


def one(model: type[M], condition: str, values: Sequence[Any], *, lock: bool = False) -> M | None:
    """The row for which `condition` (SQL, with %s) holds, or None; of several any one. With `lock` nobody else
    changes it before the transaction ends (foreign keys to it may be written)."""
    select, names, convert = _reading(model)
    with connection.cursor() as cursor:
        cursor.execute(f"{select} WHERE {condition} LIMIT 1{' FOR NO KEY UPDATE' if lock else ''}", values)
        found = cursor.fetchone()
    if found is None:
        return None
    row = list(found)
    for place, converters in convert:
        for converter, column in converters:
            row[place] = converter(row[place], column, connection)
    return model.from_db(connection.alias, names, row)


def get(model: type[M], pk: int, *, lock: bool = False) -> M:
    """The row of that primary key. Raises the model's DoesNotExist."""
    row = one(model, "id = %s", [pk], lock=lock)
    if row is None:
        raise model.DoesNotExist(f"{model.__name__} {pk} does not exist.")  # type: ignore[attr-defined]
    return row


def load(row: Model, *relations: str) -> None:
    """Reads the rows that these foreign keys point to, each at once and not when it is first asked for."""
    for relation in relations:
        field: Any = row._meta.get_field(relation)
        pk = getattr(row, field.attname)
        setattr(row, relation, None if pk is None else get(field.related_model, pk))


def update(row: Model, names: Iterable[str]) -> None:
    """Writes these fields of a row that is there. Raises DatabaseError when it is gone."""
    statement, fields = _updating(type(row), tuple(names))
    values = [field.get_db_prep_save(field.pre_save(row, False), connection) for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(statement, [*values, row.pk])
        if not cursor.rowcount:
            raise DatabaseError(f"{type(row).__name__} {row.pk} is gone.")


def insert(row: Model) -> None:
    """Writes a new row, which gets its primary key."""
    statement, fields = _inserting(type(row))
    values = [field.get_db_prep_save(field.pre_save(row, True), connection) for field in fields]
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row.pk = cursor.fetchone()[0]
    row._state.adding, row._state.db = False, connection.alias


@functools.cache
def _reading(model: type[Model]) -> tuple[str, list[str], list[tuple[int, list[tuple[Callable, Any]]]]]:
    fields = model._meta.concrete_fields
    columns = ", ".join(map(_quoted, fields))
    convert = [
        (place, [(converter, field.cached_col) for converter in found])
        for place, field in enumerate(fields)
        if (found := field.get_db_converters(connection))
    ]
    return f"SELECT {columns} FROM {_table(model)}", [field.attname for field in fields], convert


@functools.cache
def _updating(model: type[Model], names: tuple[str, ...]) -> tuple[str, list[Field]]:
    fields: list[Any] = [model._meta.get_field(name) for name in dict.fromkeys(names)]
    columns = ", ".join(f"{_quoted(field)} = %s" for field in fields)
    return f"UPDATE {_table(model)} SET {columns} WHERE id = %s", fields


@functools.cache
def _inserting(model: type[Model]) -> tuple[str, list[Field]]:
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    columns, marks = ", ".join(map(_quoted, fields)), ", ".join(["%s"] * len(fields))
    return f"INSERT INTO {_table(model)} ({columns}) VALUES ({marks}) RETURNING id", fields


def _table(model: type[Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _quoted(field: Any) -> str:
    return connection.ops.quote_name(field.column)
