"""Find what former keys encrypted or signed, and encrypt or sign it again with the first key.

These are stored credentials and the signed rows of the audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from django.core.exceptions import ImproperlyConfigured
from django.db import connection, models, transaction

from dispatch.core import crypto
from dispatch.core.audit import signatures

BATCH = 500


@dataclass
class ColumnReport:
    """The values of one encrypted column: how many there are, by the key that encrypted them.

    `unreadable` are the primary keys of rows that no configured key can decrypt.
    """

    name: str
    values: int = 0
    under_old_keys: int = 0
    reencrypted: int = 0
    unreadable: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Return how many values are still under a former key."""
        return self.under_old_keys - self.reencrypted


@dataclass(frozen=True)
class EncryptedColumn:
    """An encrypted column, or with `name` the encrypted text at this key of a JSON column."""

    model: type[models.Model]
    column: models.Field
    name: str = ""

    @property
    def label(self) -> str:
        return f"{self.model._meta.label}.{self.column.name}{f'.{self.name}' if self.name else ''}"

    @property
    def table(self) -> str:
        return connection.ops.quote_name(self.model._meta.db_table)

    @property
    def value(self) -> str:
        """Return the SQL of the value in table t."""
        return f"t.{self._quoted}->>'{self.name}'" if self.name else f"t.{self._quoted}"

    @property
    def assignment(self) -> str:
        """Return the SQL that sets the value to v.new."""
        new = f"jsonb_set(t.{self._quoted}, '{{{self.name}}}', to_jsonb(v.new))" if self.name else "v.new"
        return f"{self._quoted} = {new}"

    @property
    def _quoted(self) -> str:
        return connection.ops.quote_name(str(self.column.column))


def encrypted_columns() -> Iterator[EncryptedColumn]:
    """Yield every encrypted column and every registered encrypted text in a JSON column."""
    for model, column in crypto.encrypted_fields():
        yield EncryptedColumn(model, column)
    for model, column, name in crypto.encrypted_json_values():
        yield EncryptedColumn(model, column, name)


def check_columns() -> Iterator[ColumnReport]:
    """Report on every encrypted column, without a change."""
    for column in encrypted_columns():
        yield _walk(column, write=False)
    yield from _walk_signed_rows(write=False)


def reencrypt_columns() -> Iterator[ColumnReport]:
    """Encrypt the values under former keys again, in batches, and report on every encrypted column.

    A value that another transaction has locked or changed is left; the next run finds it if it is still old.
    """
    for column in encrypted_columns():
        yield _walk(column, write=True)
    yield from _walk_signed_rows(write=True)


def _walk_signed_rows(*, write: bool) -> Iterator[ColumnReport]:
    for name, count, old, unreadable in signatures.sign_rows_again(write=write):
        yield ColumnReport(name, count, old, old if write else 0, unreadable)


def _walk(column: EncryptedColumn, *, write: bool) -> ColumnReport:
    report = ColumnReport(column.label)
    after = 0
    while rows := _read(column, after):
        after = rows[-1][0]
        report.values += len(rows)
        old: list[tuple[int, str]] = []
        for pk, sealed in rows:
            if crypto.is_under_first_key(sealed):
                continue
            try:
                old.append((pk, crypto.reencrypt(sealed)))
            except ImproperlyConfigured:
                report.unreadable.append(pk)
        report.under_old_keys += len(old)
        if write and old:
            report.reencrypted += _write(column, old, dict(rows))
    return report


def _read(column: EncryptedColumn, after: int) -> list[tuple[int, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id, {column.value} FROM {column.table} AS t "
            f"WHERE id > %s AND {column.value} <> '' ORDER BY id LIMIT %s",
            [after, BATCH],
        )
        return cursor.fetchall()


def _write(column: EncryptedColumn, new: list[tuple[int, str]], read: dict[int, str]) -> int:
    """Replace values that are as they were read; return how many."""
    ids = [pk for pk, _ in new]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"""
            UPDATE {column.table} AS t SET {column.assignment}
            FROM (
                SELECT id FROM {column.table} WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
            ) AS free
            JOIN unnest(%(ids)s::bigint[], %(old)s::text[], %(new)s::text[]) AS v(id, old, new) ON v.id = free.id
            WHERE t.id = free.id AND {column.value} = v.old
            """,
            {"ids": ids, "old": [read[pk] for pk in ids], "new": [sealed for _, sealed in new]},
        )
        return cursor.rowcount
