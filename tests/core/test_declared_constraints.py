"""The database has every index and constraint that a model declares."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.db import connection

MODELS = [model for model in apps.get_models() if model._meta.managed and not model._meta.proxy]


@pytest.mark.django_db
def test_every_declared_index_and_constraint_exists() -> None:
    missing = []
    for model in MODELS:
        declared = {item.name for item in (*model._meta.indexes, *model._meta.constraints)}
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, model._meta.db_table)
        missing += [f"{model._meta.label}: {name}" for name in sorted(declared - set(found))]
    assert missing == []
