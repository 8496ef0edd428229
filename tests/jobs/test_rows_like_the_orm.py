"""Rows read and written with prepared statements have the same values as the ORM's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import Model
from django.utils import timezone
from psycopg.types.numeric import Int8

from dispatch.core import clock
from dispatch.core.crypto import EncryptedTextField
from dispatch.core.db import fast_rows
from dispatch.core.phone_numbers import read_stored_phone
from tests.harness.jobs import Floor
from tests.support import factories

OURS = [
    model
    for model in apps.get_models()
    if model.__module__.startswith(("dispatch.", "accounts.", "notifications."))
]


@pytest.fixture
def rows(floor: Floor) -> list[Any]:
    """All rows of a company with a job that is being offered."""
    floor.crew("Ann", "Bob")
    factories.api_key(floor.organization, "jobs:write")
    factories.dispatcher(floor.organization)
    floor.started()
    found = [row for model in OURS for row in model._base_manager.all()]
    assert {"job", "offer", "call", "submission", "technician", "organization"} <= {kind(row) for row in found}
    return found


def kind(row: Model) -> str:
    return str(row._meta.model_name)


def content(row: Model) -> dict[str, Any]:
    """Return all that a row consists of, with the types of its values that matter to those who compare them."""
    columns = {name: value for name, value in vars(row).items() if name != "_state"}
    return columns | {"adding": row._state.adding, "db": row._state.db}


def test_rows_are_read_like_the_orms(rows: list[Any]) -> None:
    for row in rows:
        before = ours = None
        while before is None or before != content(row):  # reports about the call change rows meanwhile
            before = content(type(row)._base_manager.get(pk=row.pk))
            ours = content(fast_rows.fetch_one(type(row), f"t.{row._meta.pk.column} = %s", [row.pk]))
            row = type(row)._base_manager.get(pk=row.pk)
        assert ours == before, row


def test_values_are_written_like_the_orms(rows: list[Any]) -> None:
    for row in rows:
        fields = row._meta.concrete_fields
        written = fast_rows._values(row, [fast_rows._writer(field) for field in fields], adding=False)
        expected = [field.get_db_prep_save(field.pre_save(row, False), connection) for field in fields]
        for field, ours, theirs in zip(fields, written, expected, strict=True):
            if getattr(field, "auto_now", False):
                continue
            if isinstance(field, EncryptedTextField):  # each time with another nonce
                assert field.from_db_value(ours, None, None) == field.from_db_value(theirs, None, None)
                continue
            if field.is_relation and theirs is not None:
                theirs = Int8(theirs)  # so that the statement does not depend on the number's size
            assert repr(ours) == repr(theirs) or field.get_internal_type() == "JSONField", (row, field)


def test_unusual_values_are_converted_like_the_orms(floor: Floor) -> None:
    job = floor.started()
    job.priority, job.notes, job.waiting_since = "2", 7, "2026-11-28T10:00:00+01:00"
    fast_rows.update_row(job, ("priority", "notes", "waiting_since"))
    stored = type(job).objects.get(pk=job.pk)
    assert (stored.priority, stored.notes, stored.waiting_since) == (2, "7", datetime(2026, 11, 28, 9, tzinfo=UTC))
    job.waiting_since = timezone.make_naive(clock.now())
    with pytest.warns(RuntimeWarning, match="naive"):
        fast_rows.update_row(job, ("waiting_since",))


@pytest.mark.parametrize("text", ["+16025550123", "+16025550", "+442079460000", "112", "unknown"])
def test_phone_number_of_a_row_is_that_of_its_field(text: str) -> None:
    field = factories.Technician._meta.get_field("phone")
    ours, theirs = read_stored_phone(text), field.from_db_value(text, None, connection)
    assert (ours, str(ours), ours.is_valid(), hash(ours)) == (theirs, str(theirs), theirs.is_valid(), hash(theirs))
    for form in range(4):
        assert ours.format_as(form) == ours.format_as(form) == theirs.format_as(form)
    assert field.get_prep_value(ours) == field.get_prep_value(theirs) == field.get_prep_value(ours)
    assert read_stored_phone(text) is ours
