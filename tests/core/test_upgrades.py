"""Processes of the first release keep writing while the schema is already that of this version.

A rolling upgrade migrates first and then replaces one process after another (docs/operations/upgrade.md). The
models of the first release are taken from its migrations.
"""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, date, datetime, time
from functools import cache
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connection, connections, models, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED

pytestmark = pytest.mark.django_db

PROJECT = ("dispatch.", "accounts.", "notifications.")
_number = itertools.count(1)  # distinct values for columns that must be unique

# What the constraints of the first release demand of a minimal row: nullable columns with a value, and values.
REQUIRED: dict[str, tuple[str, ...]] = {
    "jobs.Job": ("next_action_at",),
    "jobs.Submission": ("next_start_at",),
    "notifications.Alert": ("next_action_at", "next_repeat_at"),
    "outbox.Target": ("pool",),
    "schedules.Schedule": ("trigger_at",),
    "telephony.Text": ("subject_id",),
}
VALUES: dict[str, dict[str, Any]] = {
    "schedules.Schedule": {"shard": 1, "every": None, "cron": ""},
    "telephony.Text": {"purpose": "offer"},
}


@cache
def first_release() -> Any:
    """Return the app registry of the first release, with its historical models."""
    loader = MigrationLoader(connections[DEFAULT_DB_ALIAS])
    ours = {app for (app, _), found in loader.disk_migrations.items() if found.__module__.startswith(PROJECT)}
    first = [node for node in loader.graph.nodes if node[0] in ours and node[1].startswith("0001")]
    others = [node for node in loader.graph.leaf_nodes() if node[0] not in ours]
    return loader.project_state(first + others).apps, ours


def models_of_first_release() -> list[type[models.Model]]:
    registry, ours = first_release()
    return [model for model in registry.get_models() if model._meta.app_label in ours]


def insert(model: type[models.Model], made: dict[type[models.Model], models.Model]) -> models.Model:
    """Insert a minimal row, with the rows that it refers to."""
    if model not in made:
        given = VALUES.get(model._meta.label, {})
        fields = {
            field.name: value_of(field, made)
            for field in model._meta.local_concrete_fields
            if field.name not in given and is_required(field, model._meta.label)
        }
        made[model] = model._default_manager.create(**fields, **given)
    return made[model]


def is_required(field: Any, label: str) -> bool:
    if field.name in REQUIRED.get(label, ()):
        return True
    is_computed = field.generated or getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    is_automatic = isinstance(field, models.AutoField | models.BigAutoField) or is_computed
    return not (is_automatic or field.null or field.has_default() or field.db_default is not NOT_PROVIDED)


def value_of(field: Any, made: dict[type[models.Model], models.Model]) -> Any:
    if field.is_relation:
        return insert(field.related_model, made)
    if field.choices:
        return field.flatchoices[0][0]
    number = next(_number)
    values: dict[type[models.Field[Any, Any]], Any] = {
        models.UUIDField: uuid.uuid4(),
        models.DateTimeField: datetime(2026, 1, 1, tzinfo=UTC),
        models.DateField: date(2026, 1, 1),
        models.TimeField: time(9),
        models.BooleanField: False,
        models.FloatField: float(number),
        models.DecimalField: number,
        models.IntegerField: number,
        models.JSONField: {},
    }
    for kind, value in values.items():
        if isinstance(field, kind):
            return value
    text = f"+1602555{number:04d}" if "phone" in type(field).__name__.lower() else f"x{number}"
    return text[-field.max_length :] if field.max_length else text


def test_rows_of_the_first_release_can_still_be_inserted() -> None:
    made: dict[type[models.Model], models.Model] = {}
    refused: list[str] = []
    for model in models_of_first_release():
        try:
            with transaction.atomic():
                inserted = dict(made)
                insert(model, inserted)
            made = inserted
        except IntegrityError as error:
            refused.append(f"{model._meta.label}: {str(error).splitlines()[0]}")
    assert refused == [], "\n".join(refused)
    assert len(made) >= 40
    for model, row in made.items():
        row.refresh_from_db()
        row.save()
        assert model._default_manager.filter(pk=row.pk).exists()


def test_a_column_that_demands_a_value_would_be_noticed() -> None:
    registry, _ = first_release()
    model = registry.get_model("outbox", "Endpoint")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE outbox_endpoint ADD COLUMN demanding text NOT NULL")
    with pytest.raises(IntegrityError, match="demanding"):
        insert(model, {})
