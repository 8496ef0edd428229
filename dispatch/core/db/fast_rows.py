"""Read and write single model rows with prepared statements, for hot paths.

For every query, the ORM builds the statement and PostgreSQL plans it, which costs several times as much as running
it. These functions use prepared statements (`core.db.prepared`). They read and write the same values as the ORM,
one row at a time, without signals and default orderings. One statement writes a changed row and its event.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.models import (
    BigAutoField,
    BooleanField,
    CharField,
    DateTimeField,
    Field,
    ForeignKey,
    IntegerField,
    Model,
    TextField,
)
from phonenumber_field.modelfields import PhoneNumberField
from psycopg.types.numeric import Int8

from dispatch.core import events, phone_numbers
from dispatch.core.db import lock_waits, prepared
from dispatch.core.db.instances import stored_instance
from dispatch.core.events import NewEvent

M = TypeVar("M", bound=Model)

_Given = Sequence[Any] | Mapping[str, Any]
_Converters = list[tuple[str, list[tuple[Callable, Any]]]]


class _Part(NamedTuple):
    """Where the columns of the row, or of a related row, are in the result.

    `relation` is a foreign key of the row of `parent`: both are empty for the row itself.
    """

    path: str
    parent: str
    relation: str
    field: Any  # of the relation
    model: type[Model]
    names: list[str]
    start: int
    primary_key: int
    convert: _Converters


class _Writer(NamedTuple):
    """How to write a field: a value of the type `plain` as it is or as `wrap` returns it, others like the ORM."""

    field: Any
    name: str
    plain: type | None
    wrap: Callable[[Any], Any] | None


class Guard(NamedTuple):
    """An INSERT … RETURNING that decides in the same statement whether `insert_row` inserts its row."""

    statement: str
    values: Sequence[Any]


def fetch_one(model: type[M], condition: str, values: _Given, *related: str, lock: bool = False) -> M | None:
    """Return the row `t` for which `condition` (SQL, with %s) holds, or None; any of them if there are several.

    Rows that the foreign keys `related` reference are read in the same query; `condition` may name them r1, r2, …
    in this order. A foreign key of a related row, such as "job__organization", follows that row. With `lock`, no
    other transaction can change the row until this one ends (rows that reference it may be inserted).
    """
    rows = fetch_many(model, f"{condition} LIMIT 1", values, *related, lock=lock)
    return rows[0] if rows else None


def fetch_many(model: type[M], condition: str, values: _Given, *related: str, lock: bool = False) -> list[M]:
    """Return the rows `t` for which `condition` (SQL, may end with ORDER BY) holds, as `fetch_one`."""
    return find_many(model, condition, values, *related, lock=lock)()


def find_many(
    model: type[M], condition: str, values: _Given, *related: str, lock: bool = False
) -> Callable[[], list[M]]:
    """Return a function for what `fetch_many` returns. A pipeline does not wait for it."""
    select, _, parts = _reading(model, related)
    if lock:
        lock_waits.apply_limit()
    statement = f"{select} WHERE {condition}{' FOR NO KEY UPDATE OF t' if lock else ''}"
    find_rows = prepared.fetch_later(statement, values)
    return lambda: [_built(parts, row) for row in find_rows()]


def fetch_by_pk(model: type[M], pk: int, *related: str, lock: bool = False) -> M:
    """Return the row with this primary key, as `fetch_one`. Raises the model's DoesNotExist."""
    return find_by_pk(model, pk, *related, lock=lock)()


def find_by_pk(model: type[M], pk: int, *related: str, lock: bool = False) -> Callable[[], M]:
    """Return a function for what `fetch_by_pk` returns. A pipeline does not wait for it."""
    find = find_many(model, "t.id = %s", [pk], *related, lock=lock)

    def answer() -> M:
        rows = find()
        if not rows:
            raise model.DoesNotExist(f"{model.__name__} {pk} does not exist.")  # type: ignore[attr-defined]
        return rows[0]

    return answer


def fetch_changed(model: type[M], change: str, values: Sequence[Any], *related: str) -> M | None:
    """Run an UPDATE of the row `t` and return it as it is then, as `fetch_one`; None if nothing was updated.

    `change` (SQL, with %s) has the tables of `related` in its FROM as r1, r2, …, and no RETURNING.
    """
    _, columns, parts = _reading(model, related)
    rows = prepared.fetch_all(f"{change} RETURNING {columns}", values)
    return _built(parts, rows[0]) if rows else None


def update_row(row: Model, names: Iterable[str], *news: NewEvent) -> None:
    """Write these fields of an existing row, and the events about it, with the next statement of the transaction.

    Raises DatabaseError if the row is gone, then or before the commit.
    """
    statement, writers = _updating(type(row), tuple(names), len(news))
    values = _values(row, writers, adding=False)
    event_values = [value for event in news for value in event.values(row.pk)]
    made = [events.unsaved(event, row.pk) for event in news]

    def identify(result: prepared.Result) -> None:
        ((pks, _),) = result.fetchall()
        for event, pk in zip(made, pks or (), strict=True):
            event.pk = pk

    gone = f"{type(row).__name__} {row.pk} no longer exists."
    prepared.change_later(statement, [*event_values, *values, row.pk], then=identify, refusal=gone)
    for event in made:
        events.appended(event)


def insert_row(
    row: Model, event: NewEvent | None = None, *, or_nothing: bool = False, guard: Guard | None = None
) -> bool:
    """Insert a row and the event about it in one statement; set the row's primary key unless it has one.

    A row that has one, such as from `reserve_pk`, is inserted with the next statement of the transaction.
    With `or_nothing`, return False if a unique constraint forbids the row; the transaction stays usable. With
    `guard`, return False if its statement inserted nothing.
    """
    statement, writers = _inserting(
        type(row), row.pk is not None, event is not None, or_nothing, guard.statement if guard else ""
    )
    values = [*(guard.values if guard else ()), *_values(row, writers, adding=True)]
    values += event.values_without_subject() if event else ()
    if row.pk is not None and not or_nothing and guard is None:
        _insert_later(row, event, statement, values)
        return True
    made = prepared.fetch_all(statement, values)
    if not made:
        return False
    row.pk = made[0][0]
    if event:
        written = events.unsaved(event, row.pk)
        written.pk = made[0][1]
        events.appended(written)
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    return True


def _insert_later(row: Model, event: NewEvent | None, statement: str, values: Sequence[Any]) -> None:
    written = events.unsaved(event, row.pk) if event else None

    def identify(result: prepared.Result) -> None:
        if written is not None:
            ((_, written.pk),) = result.fetchall()

    prepared.change_later(statement, values, then=identify)
    row._state.adding, row._state.db = False, DEFAULT_DB_ALIAS
    if written is not None:
        events.appended(written)


def reserve_pk(model: type[Model]) -> Callable[[], int]:
    """Return a function for a primary key that no other row of the model gets. A pipeline does not wait for it."""
    statement = _next_pks.get(model)
    if statement is not None:
        find = prepared.fetch_later(statement)
        return lambda: find()[0][0]
    find = prepared.fetch_later(_FIRST_PK, [_table(model)])

    def answer() -> int:
        ((pk, _next_pks[model]),) = find()
        return int(pk)

    return answer


# By model: PostgreSQL looks up the sequence of a primary key as long as it runs several small reads.
_next_pks: dict[type[Model], str] = {}
_FIRST_PK = """
SELECT nextval(name::regclass), format('SELECT nextval(%%L::regclass)', name)
FROM (SELECT pg_get_serial_sequence(%s, 'id') AS name OFFSET 0) AS sequence
"""


def _values(row: Model, writers: Sequence[_Writer], *, adding: bool) -> list[Any]:
    database = connections[DEFAULT_DB_ALIAS]
    values: list[Any] = []
    for field, name, plain, wrap in writers:
        if plain is not None:
            value: Any = getattr(row, name)
            if value is None:
                values.append(None)
                continue
            if type(value) is plain and (plain is not datetime or _is_aware(value)):
                values.append(wrap(value) if wrap else value)
                continue
        values.append(field.get_db_prep_save(field.pre_save(row, adding), database))
    return values


def _is_aware(value: Any) -> bool:
    return value.tzinfo is not None


def _writer(field: Any) -> _Writer:
    """Return how to write a field. Most have values of a type that the driver takes as it is."""
    kind = type(field)
    is_usual = all(getattr(kind, method) is getattr(Field, method) for method in ("get_db_prep_save", "pre_save"))
    if isinstance(field, ForeignKey):
        if kind.get_db_prep_save is ForeignKey.get_db_prep_save and isinstance(field.target_field, BigAutoField):
            return _Writer(field, field.attname, int, Int8)
    elif isinstance(field, DateTimeField):
        if kind.get_db_prep_value is DateTimeField.get_db_prep_value and not (
            field.auto_now or field.auto_now_add
        ):
            return _Writer(field, field.attname, datetime, None)
    elif is_usual and isinstance(field, IntegerField):
        if kind.get_db_prep_value is IntegerField.get_db_prep_value:
            operations: Any = connection.ops
            kind_of_integer = operations.integerfield_type_map[field.get_internal_type()]
            return _Writer(field, field.attname, int, kind_of_integer)
    elif is_usual and kind.get_db_prep_value is Field.get_db_prep_value:
        for base, plain in ((CharField, str), (TextField, str), (BooleanField, bool)):
            if (
                isinstance(field, base)
                and kind.get_prep_value is base.get_prep_value
                and kind.to_python is base.to_python
            ):
                return _Writer(field, field.attname, plain, None)
    return _Writer(field, field.attname, None, None)


def _built(parts: list[_Part], values: Sequence[Any]) -> Any:
    """Return the first part's row, with its related rows assigned."""
    rows: dict[str, Any] = {}
    for part in parts:
        parent = rows.get(part.parent)
        if part.relation and values[part.start + part.primary_key] is None:
            if parent is not None:
                part.field.set_cached_value(parent, None)
            continue
        columns = values[part.start : part.start + len(part.names)]
        rows[part.path] = row = stored_instance(part.model, part.names, columns)
        for name, converters in part.convert:
            for converter, column in converters:
                row.__dict__[name] = converter(row.__dict__[name], column, connection)
        if part.field is not None:  # as its descriptor does, but the parent has the key of the row already
            part.field.set_cached_value(parent, row)
            if not part.field.remote_field.multiple:
                part.field.remote_field.set_cached_value(row, parent)
    return rows[""]


def _converters(field: Any) -> list[tuple[Callable, Any]]:
    """Return what the values of a field are converted with when they are read."""
    if isinstance(field, PhoneNumberField):
        return [(_read_phone, field.cached_col)]
    return [(converter, field.cached_col) for converter in field.get_db_converters(connection)]


def _read_phone(value: str | None, _column: Any, _connection: Any) -> Any:
    return phone_numbers.read_stored_phone(value) if value else value


@functools.cache
def _reading(model: type[Model], related: tuple[str, ...]) -> tuple[str, str, list[_Part]]:
    """Return the SELECT without its condition, the columns it lists, and where each row's columns are."""
    parts: list[_Part] = []
    columns: list[str] = []
    joins: list[str] = []
    aliases: dict[str, str] = {}
    models: dict[str, Any] = {}
    for place, path in enumerate(("", *related)):
        parent, _, relation = path.rpartition("__")
        field: Any = models[parent]._meta.get_field(relation) if relation else None
        of: Any = field.related_model if relation else model
        alias = f"r{place}" if relation else "t"
        aliases[path], models[path] = alias, of
        fields = of._meta.concrete_fields
        convert = [(each.attname, found) for each in fields if (found := _converters(each))]
        key = fields.index(of._meta.pk)
        names = [each.attname for each in fields]
        parts.append(_Part(path, parent, relation, field, of, names, len(columns), key, convert))
        columns += [f"{alias}.{_quoted(each)}" for each in fields]
        if relation:
            column = f"{aliases[parent]}.{_quoted(field)}"
            joins.append(f" LEFT JOIN {_table(of)} {alias} ON {alias}.id = {column}")
    listed = ", ".join(columns)
    return f"SELECT {listed} FROM {_table(model)} t{''.join(joins)}", listed, parts


@functools.cache
def _updating(model: type[Model], names: tuple[str, ...], news: int) -> tuple[str, list[_Writer]]:
    fields: list[Any] = [model._meta.get_field(name) for name in dict.fromkeys(names)]
    columns = ", ".join(f"{_quoted(field)} = %s" for field in fields)
    with_events = f"appended AS ({events.insert(news)}), " if news else ""
    changed = f"changed AS (UPDATE {_table(model)} SET {columns} WHERE id = %s RETURNING id)"
    ids = "(SELECT array_agg(id ORDER BY id) FROM appended)" if news else "NULL"
    # Refused by PostgreSQL itself if the row is gone, so that the commit need not wait for the result.
    statement = f"WITH {with_events}{changed} SELECT {ids}, 1 / count(*) FROM changed"
    return statement, [_writer(field) for field in fields]


@functools.cache
def _inserting(
    model: type[Model], with_pk: bool, with_event: bool, or_nothing: bool, guard: str
) -> tuple[str, list[_Writer]]:
    fields = [field for field in model._meta.concrete_fields if with_pk or not field.primary_key]
    columns, marks = ", ".join(map(_quoted, fields)), ", ".join(["%s"] * len(fields))
    source = f"VALUES ({marks})"
    if guard:
        # Without their lengths, which would truncate a value that is too long instead of refusing it.
        types = [str(field.db_type(connection)).partition("(")[0] for field in fields]
        source = f"SELECT {', '.join(f'%s::{each}' for each in types)} FROM guard"
    unless = " ON CONFLICT DO NOTHING" if or_nothing else ""
    statement = f"INSERT INTO {_table(model)} ({columns}) {source}{unless} RETURNING id"
    if with_event:
        statement = events.insert_about(statement)
    return (_with_first("guard", guard, statement) if guard else statement), [_writer(field) for field in fields]


def _with_first(name: str, query: str, statement: str) -> str:
    """Put a named query in front of those that the statement has."""
    rest = statement.removeprefix("WITH ")
    return f"WITH {name} AS ({query}){', ' if rest != statement else ' '}{rest}"


def _table(model: type[Model]) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _quoted(field: Any) -> str:
    return connection.ops.quote_name(field.column)
