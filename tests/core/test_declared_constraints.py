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


# Tables that are written for each piece of work, so that each of their indexes costs.
WRITTEN_OFTEN = (
    "core_event", "jobs_candidate", "jobs_job", "jobs_offer", "jobs_submission", "leads_lead",
    "notifications_delivery", "notifications_notification", "outbox_attempt", "outbox_message",
    "outbox_messagegroup", "schedules_run", "schedules_schedule", "telephony_call", "telephony_callevent",
    "telephony_text",
)  # fmt: skip
# Indexes whose columns are the first ones of another index of all rows.
_REPEATED = """
SELECT t.relname, c.relname FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relname = ANY(%s) AND NOT i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND EXISTS (
    SELECT FROM pg_index o JOIN pg_class oc ON oc.oid = o.indexrelid
    WHERE o.indrelid = i.indrelid AND o.indexrelid <> i.indexrelid AND o.indpred IS NULL AND oc.relam = c.relam
      AND o.indkey::text || ' ' LIKE i.indkey::text || ' %%'
      AND o.indclass::text || ' ' LIKE i.indclass::text || ' %%'
)
"""


@pytest.mark.django_db
def test_no_table_that_is_written_often_has_an_index_twice() -> None:
    with connection.cursor() as cursor:
        cursor.execute(_REPEATED, [list(WRITTEN_OFTEN)])
        assert cursor.fetchall() == []
        cursor.execute("SELECT count(*) FROM pg_class WHERE relname = ANY(%s)", [list(WRITTEN_OFTEN)])
        assert cursor.fetchone() == (len(WRITTEN_OFTEN),)
