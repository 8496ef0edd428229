"""Find what former keys encrypted or signed, and encrypt or sign it again with the newest key.

These are stored credentials and the anchors of the audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from django.core.exceptions import ImproperlyConfigured
from django.db import connection, models, transaction

from dispatch.core import crypto
from dispatch.core.audit import chain

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


def check_columns() -> Iterator[ColumnReport]:
    """Report on every encrypted column, without a change."""
    for model, column in crypto.encrypted_fields():
        yield _walk(model, column, write=False)
    yield _walk_anchors(write=False)


def reencrypt_columns() -> Iterator[ColumnReport]:
    """Encrypt the values under former keys again, in batches, and report on every encrypted column.

    A value that another transaction has locked or changed is left; the next run finds it if it is still old.
    """
    for model, column in crypto.encrypted_fields():
        yield _walk(model, column, write=True)
    yield _walk_anchors(write=True)


def _walk_anchors(*, write: bool) -> ColumnReport:
    count, old, unreadable = chain.sign_anchors_again(write=write)
    return ColumnReport("core.AuditAnchor.keyed_hash", count, old, old if write else 0, unreadable)


def _walk(model: type[models.Model], column: models.Field, *, write: bool) -> ColumnReport:
    report = ColumnReport(f"{model._meta.label}.{column.name}")
    after = 0
    while rows := _read(model, column, after):
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
            report.reencrypted += _write(model, column, old, dict(rows))
    return report


def _read(model: type[models.Model], column: models.Field, after: int) -> list[tuple[int, str]]:
    table, name = _quoted(model, column)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id, {name} FROM {table} WHERE id > %s AND {name} <> '' ORDER BY id LIMIT %s", [after, BATCH]
        )
        return cursor.fetchall()


def _write(
    model: type[models.Model], column: models.Field, new: list[tuple[int, str]], read: dict[int, str]
) -> int:
    """Replace values that are as they were read; return how many."""
    table, name = _quoted(model, column)
    ids = [pk for pk, _ in new]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"""
            UPDATE {table} AS t SET {name} = v.new
            FROM (SELECT id FROM {table} WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) AS free
            JOIN unnest(%(ids)s::bigint[], %(old)s::text[], %(new)s::text[]) AS v(id, old, new) ON v.id = free.id
            WHERE t.id = free.id AND t.{name} = v.old
            """,
            {"ids": ids, "old": [read[pk] for pk in ids], "new": [sealed for _, sealed in new]},
        )
        return cursor.rowcount


def _quoted(model: type[models.Model], column: models.Field) -> tuple[str, str]:
    quote = connection.ops.quote_name
    return quote(model._meta.db_table), quote(str(column.column))
