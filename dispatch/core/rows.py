"""Whole rows of models by statements that are written once, for hot paths.

The ORM builds each statement anew and PostgreSQL plans it anew, which costs several times what the statement
itself does. These are prepared (`core.statements`); they read and write what the ORM would, one row at a time,
without signals and default orderings. A row that changes takes its event along: one statement writes both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections
from django.db.models import Field, Model

from dispatch.core import events, statements
from dispatch.core.events import NewEvent

M = TypeVar("M", bound=Model)

_Converters = list[tuple[int, list[tuple[Callable, Any]]]]


class _Part(NamedTuple):
    """Where a row's columns, or those of a row that it points to, stand in what was read."""

    relation: str
    model: type[Model]
    names: list[str]
    start: int
    primary_key: int
    convert: _Converters


def one(model: type[M], condition: str, values: Sequence[Any], *related: str, lock: bool = False) -> M | None:
    """The row `t` for which `condition` (SQL, with %s) holds, or None; of several any one. The rows that the
    foreign keys `related` point to are read along. With `lock` nobody else changes it before the transaction ends
    (foreign keys to it may be written)."""
    select, parts = _reading(model, related)
    found = statements.rows(
        f"{select} WHERE {condition} LIMIT 1{' FOR NO KEY UPDATE OF t' if lock else ''}", values
    )
    return _built(parts, found[0]) if found else None


def get(model: type[M], pk: int, *related: str, lock: bool = False) -> M:
    """The row of that primary key, as `one` reads it. Raises the model's DoesNotExist."""
    row = one(model, "t.id = %s", [pk], *related, lock=lock)
    if row is None:
        raise model.DoesNotExist(f"{model.__name__} {pk} does not exist.")  # type: ignore[attr-defined]
    return row


def update(row: Model, names: Iterable[str], *news: NewEvent) -> None:
    """Writes these fields of a row that is there, and the events about it. Raises DatabaseError when it is
    gone."""
    statement, fields = _updating(type(row), tuple(names), len(news))
    values = _values(row, fields, adding=False)
    told = [value for event in news for value in event.values(row.pk)]
    written = statements.rows(statement, [*told, *values, row.pk])
    if not written:
        raise DatabaseError(f"{type(row).__name__} {row.pk} is gone.")
    for event, pk in zip(news, written[0][0] or (), strict=True):
        events.appended(event, row.pk, pk)


def insert(row: Model, event: NewEvent | None = None, *, or_nothing: bool = False) -> bool:
    """Writes a new row, which gets its primary key, and the event about it. With `or_nothing` it is not written
    when a unique constraint forbids it, which spoils no transaction: False."""
    statement, fields = _inserting(type(row), event is not None, or_nothing)
    values = _values(row, fields, adding=True)
    made = statements.rows(statement, [*values, *(event.values_without_subject() if event else ())])
    if not made:
        return False
    row.pk = made[0][0]
    if event:
        events.appended(event, row.pk, made[0][1])
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    return True


def _values(row: Model, fields: Sequence[Any], *, adding: bool) -> list[Any]:
    database = connections[DEFAULT_DB_ALIAS]
    return [field.get_db_prep_save(field.pre_save(row, adding), database) for field in fields]


def _built(parts: list[_Part], found: Sequence[Any]) -> Any:
    """The first part's row, with those it points to put in their places."""
    whole: Any = None
    for part in parts:
        if part.relation and found[part.start + part.primary_key] is None:
            setattr(whole, part.relation, None)
            continue
        columns = list(found[part.start : part.start + len(part.names)])
        for place, converters in part.convert:
            for converter, column in converters:
                columns[place] = converter(columns[place], column, connection)
        row = part.model.from_db(DEFAULT_DB_ALIAS, part.names, columns)
        if part.relation:
            setattr(whole, part.relation, row)
        else:
            whole = row
    return whole


@functools.cache
def _reading(model: type[Model], related: tuple[str, ...]) -> tuple[str, list[_Part]]:
    parts: list[_Part] = []
    columns: list[str] = []
    joins: list[str] = []
    for place, relation in enumerate(("", *related)):
        of: Any = model._meta.get_field(relation).related_model if relation else model
        alias = f"r{place}" if relation else "t"
        fields = of._meta.concrete_fields
        convert = [
            (at, [(converter, field.cached_col) for converter in found])
            for at, field in enumerate(fields)
            if (found := field.get_db_converters(connection))
        ]
        key = fields.index(of._meta.pk)
        parts.append(_Part(relation, of, [field.attname for field in fields], len(columns), key, convert))
        columns += [f"{alias}.{_quoted(field)}" for field in fields]
        if relation:
            joins.append(
                f" LEFT JOIN {_table(of)} {alias} ON {alias}.id = t.{_quoted(model._meta.get_field(relation))}"
            )
    return f"SELECT {', '.join(columns)} FROM {_table(model)} t{''.join(joins)}", parts


@functools.cache
def _updating(model: type[Model], names: tuple[str, ...], news: int) -> tuple[str, list[Field]]:
    fields: list[Any] = [model._meta.get_field(name) for name in dict.fromkeys(names)]
    columns = ", ".join(f"{_quoted(field)} = %s" for field in fields)
    told = f"WITH told AS ({events.insert(news)}) " if news else ""
    ids = "(SELECT array_agg(id ORDER BY id) FROM told)" if news else "NULL"
    return f"{told}UPDATE {_table(model)} SET {columns} WHERE id = %s RETURNING {ids}", fields


@functools.cache
def _inserting(model: type[Model], with_event: bool, or_nothing: bool) -> tuple[str, list[Field]]:
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    columns, marks = ", ".join(map(_quoted, fields)), ", ".join(["%s"] * len(fields))
    unless = " ON CONFLICT DO NOTHING" if or_nothing else ""
    statement = f"INSERT INTO {_table(model)} ({columns}) VALUES ({marks}){unless} RETURNING id"
    return events.insert_about(statement) if with_event else statement, fields


def _table(model: type[Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _quoted(field: Any) -> str:
    return connection.ops.quote_name(field.column)
