"""Remove a person's phone numbers and email addresses from every text and JSON column of an organization.

The handlers of the slices know where personal data belongs. This is the last step of an erasure: it finds copies
in places that no handler knows, such as an error text that repeats a request. Names and addresses are
removed only from the rows in which a phone number or an email address was found: elsewhere they may be another
person's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

import phonenumbers
from django.apps import apps
from django.db import connection, models
from phonenumber_field.modelfields import PhoneNumberField

from dispatch.core.crypto import EncryptedTextField

ERASED = "erased"
# Shorter national numbers are matched only as they are stored: their digits are too common.
MIN_DIGITS = 7
# Signed rows of the audit log would be invalid after a change.
_SIGNED = {"core.AuditSeal", "core.AuditAnchor", "core.AuditRedaction", "core.AuditRestart"}
_KEPT = {"core.Event", "core.ReplayEntry", "core.RememberedAnswer"} | _SIGNED


def word_pattern(words: Collection[str], names: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of the whole words, the longest first; it matches nothing without words.

    A phone number (E.164) is matched in every notation.
    """
    longest_first = sorted({*words, *names}, key=len, reverse=True)
    pattern = "|".join(rf"(?<!\w){_any_notation(word)}(?!\w)" for word in longest_first)
    return re.compile(pattern or r"(?!)", re.IGNORECASE)


def _any_notation(word: str) -> str:
    """Return a regular expression for the ways to write a phone number, or for just the word itself."""
    if not re.fullmatch(r"\+\d{8,15}", word):
        return re.escape(word)
    parsed = phonenumbers.parse(word)
    digits = str(parsed.national_number)
    if len(digits) < MIN_DIGITS:
        return re.escape(word)
    between = r"[\s().\-/]{0,3}"
    return rf"((\+|00|011)?{between}{parsed.country_code}{between})?0?\(?{between.join(digits)}"


def scrub_organization(
    organization_id: int, words: Collection[str], names: Collection[str], kept: Collection[str]
) -> int:
    """Remove the `words`, and `names` in the same rows; return how many rows changed.

    `kept` are labels of models that keep their values.
    """
    if not words:
        return 0
    pattern = word_pattern(words, names)
    searched = [_any_notation(word) for word in words]
    return sum(
        _scrub(model, columns, organization_id, searched, pattern)
        for model, columns in [*owned_columns(), *_columns_of_parts()]
        if model._meta.label not in _KEPT and model._meta.label not in kept
    )


def owned_columns() -> Iterator[tuple[type[models.Model], list[models.Field]]]:
    """Yield the models whose rows belong to an organization, with their text and JSON columns.

    Encrypted columns hold credentials and cannot be searched.
    """
    for model in apps.get_models():
        if _is_owned(model) and (columns := _columns_of(model)):
            yield model, columns


def _columns_of_parts() -> Iterator[tuple[type[models.Model], list[models.Field]]]:
    """Yield the models whose rows belong to a row of an organization, such as the rows of an import."""
    for model in apps.get_models():
        if not _is_owned(model) and _parent_of(model) and (columns := _columns_of(model)):
            yield model, columns


def _is_owned(model: type[models.Model]) -> bool:
    fields = model._meta.local_concrete_fields
    return model._meta.managed and any(field.column == "organization_id" for field in fields)


def _parent_of(model: type[models.Model]) -> Any:
    """Return the foreign key to an organization's row with which this row is deleted, or None."""
    for field in model._meta.local_concrete_fields:
        if isinstance(field, models.ForeignKey) and field.remote_field.on_delete is models.CASCADE:
            related: Any = field.related_model
            if _is_owned(related):
                return field
    return None


def _columns_of(model: type[models.Model]) -> list[models.Field]:
    return [
        field
        for field in model._meta.local_concrete_fields
        if isinstance(field, models.CharField | models.TextField | models.JSONField)
        and not isinstance(field, EncryptedTextField)
        and not field.choices
    ]


def scrub_json(value: Any, pattern: re.Pattern[str]) -> Any:
    """Return the JSON value with every match replaced, also in the names of members."""
    if isinstance(value, str):
        return pattern.sub(ERASED, value)
    if isinstance(value, dict):
        return {pattern.sub(ERASED, name): scrub_json(item, pattern) for name, item in value.items()}
    return [scrub_json(item, pattern) for item in value] if isinstance(value, list) else value


def _scrub(
    model: type[models.Model],
    columns: list[models.Field],
    organization_id: int,
    searched: list[str],
    pattern: re.Pattern[str],
) -> int:
    quote = connection.ops.quote_name
    table, key = quote(model._meta.db_table), quote(str(model._meta.pk.column))
    names = [quote(str(field.column)) for field in columns]
    found = " OR ".join(f"{name}::text ~* ANY(%(searched)s)" for name in names)
    texts = ", ".join(f"{name}::text" for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {key}, {texts} FROM {table} WHERE {_owned_by(model)} AND ({found}) "
            f"ORDER BY {key} FOR NO KEY UPDATE",
            {"organization": organization_id, "searched": searched},
        )
        rows = cursor.fetchall()
        for pk, *values in rows:
            new = [_scrubbed(field, value, pk, pattern) for field, value in zip(columns, values, strict=True)]
            changes = ", ".join(
                f"{name} = %s::jsonb" if isinstance(field, models.JSONField) else f"{name} = %s"
                for field, name in zip(columns, names, strict=True)
            )
            cursor.execute(f"UPDATE {table} SET {changes} WHERE {key} = %s", [*new, pk])
    return len(rows)


def _owned_by(model: type[models.Model]) -> str:
    """Return the SQL condition for rows of %(organization)s."""
    if _is_owned(model):
        return "organization_id = %(organization)s"
    parent = _parent_of(model)
    assert parent is not None
    quote = connection.ops.quote_name
    of: Any = parent.related_model
    return (
        f"{quote(parent.column)} IN (SELECT {quote(of._meta.pk.column)} FROM {quote(of._meta.db_table)} "
        "WHERE organization_id = %(organization)s)"
    )


def _scrubbed(field: models.Field, value: str | None, pk: object, pattern: re.Pattern[str]) -> str | None:
    """Return the text of a column without the words.

    A column that is a phone number becomes empty. One with a unique value stays unique.
    """
    if value is None:
        return value
    if isinstance(field, models.JSONField):
        return json.dumps(scrub_json(json.loads(value), pattern))
    if not pattern.search(value):
        return value
    if isinstance(field, PhoneNumberField):
        return ""
    if pattern.fullmatch(value.strip()) and field.blank and not _is_unique(field):
        return ""
    new = pattern.sub(f"{ERASED}-{pk}" if _is_unique(field) else ERASED, value)
    return new[: field.max_length] if getattr(field, "max_length", None) else new


def _is_unique(field: models.Field) -> bool:
    constraints = field.model._meta.constraints
    return field.unique or any(
        isinstance(constraint, models.UniqueConstraint) and field.name in constraint.fields
        for constraint in constraints
    )
