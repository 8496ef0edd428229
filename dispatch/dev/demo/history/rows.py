"""Write rows in bulk with COPY, and events that no reader reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, models
from psycopg import sql
from psycopg.types.json import Jsonb

from accounts.models import Organization
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event

# Every reader's cursor begins at transaction 0 and event 0, so events of this transaction are in no reader's past.
BEFORE_ALL_READERS = -1
IDS_AT_ONCE = 200


class Table:
    """Collect the rows of one model. The id of a row is known before it is written."""

    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self._rows: list[dict[str, Any]] = []
        self._ids = self._next_ids()
        self._fields = {field.attname: field for field in model._meta.concrete_fields}

    def add(self, **values: Any) -> dict[str, Any]:
        """Collect a row and return it; it can be changed until it is written.

        `values`: by column name (`job_id`); others get the model's default. `id` is set.
        """
        if unknown := values.keys() - self._fields.keys():
            raise TypeError(f"{self.model.__name__} has no {sorted(unknown)}")
        values.setdefault("id", next(self._ids))
        self._rows.append(values)
        return values

    def write(self) -> None:
        """Write the collected rows."""
        if not self._rows:
            return
        given = {name for row in self._rows for name in row}
        fields = [
            field
            for field in self._fields.values()
            if field.attname in given or field.has_default() or not field.has_db_default()
        ]
        makers = [(field.attname, _converter(field), _default(field)) for field in fields]
        columns = sql.SQL(", ").join(sql.Identifier(str(field.column)) for field in fields)
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(self.model._meta.db_table), columns)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in self._rows:
                copy.write_row(
                    [convert(row[name] if name in row else default()) for name, convert, default in makers]
                )
        self._rows = []

    def _next_ids(self) -> Iterator[int]:
        table = self.model._meta.db_table
        while True:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)",
                    [table, IDS_AT_ONCE],
                )
                ids = [row[0] for row in cursor.fetchall()]
            yield from sorted(ids)


class Batch:
    """Collect the rows of an organization by model, and its events by time."""

    def __init__(self, organization: Organization) -> None:
        self.organization = organization
        self._tables: dict[type[models.Model], Table] = {}
        self._events: list[tuple[datetime, int, dict[str, Any], Sequence[dict[str, Any]]]] = []

    def add(self, model: type[models.Model], **values: Any) -> dict[str, Any]:
        """Collect a row of the organization, and return it as `Table.add` does."""
        return self._table(model).add(organization_id=self.organization.pk, **values)

    def event(
        self,
        at: datetime,
        kind: str,
        subject_id: int,
        actor: Actor = SYSTEM,
        /,
        *,
        rows: Sequence[dict[str, Any]] = (),
        **data: Any,
    ) -> None:
        """Collect an event of the organization. Its id becomes the `event_id` of `rows`."""
        said = {name: value for name, value in data.items() if value not in (None, "")}
        event = {
            "xid": BEFORE_ALL_READERS, "kind": kind, "subject_type": kind.split(".", 1)[0], "at": at, "data": said,
            "subject_id": subject_id, "actor_type": actor.type, "actor_id": actor.id, "actor_label": actor.label,
        }  # fmt: skip
        self._events.append((at, len(self._events), event, rows))

    def write(self) -> None:
        """Write all rows, in the order in which their models were first used. Events get ids by time."""
        events = self._table(Event)
        for _, _, event, rows in sorted(self._events, key=lambda entry: entry[:2]):
            written = events.add(organization_id=self.organization.pk, **event)
            for row in rows:
                row["event_id"] = written["id"]
        self._events = []
        for table in self._tables.values():
            table.write()

    def _table(self, model: type[models.Model]) -> Table:
        if model not in self._tables:
            self._tables[model] = Table(model)
        return self._tables[model]


def _converter(field: models.Field[Any, Any]) -> Callable[[Any], Any]:
    if isinstance(field, models.JSONField):
        return lambda value: None if value is None else Jsonb(value)
    return lambda value: value


def _default(field: models.Field[Any, Any]) -> Callable[[], Any]:
    if not field.has_default() and not field.null and not field.empty_strings_allowed and field.attname != "id":
        return _missing(field)
    return field.get_default


def _missing(field: models.Field[Any, Any]) -> Callable[[], Any]:
    def fail() -> Any:
        raise TypeError(f"{field.model.__name__} needs {field.attname}")

    return fail
