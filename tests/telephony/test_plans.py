"""The loops read no whole table of ended calls, even if PostgreSQL never analyzed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.core import clock, crypto
from dispatch.core.db.isolation import unlocked_ids
from dispatch.telephony import number_health, rules, sql
from dispatch.telephony.models import Call, Text
from dispatch.telephony.services import reconciliation
from tests.core.test_loop_isolation import due_text
from tests.support import factories
from tests.support.copies import copy_row
from tests.support.plans import explain_rows_read, forget_statistics, pretend_empty

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 20_000


@pytest.fixture
def ended_calls() -> Iterator[None]:
    """Thousands of calls that ended 60 days ago."""
    organization = factories.organization()
    number = factories.number(organization)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE telephony_call SET (autovacuum_enabled = false)")
        cursor.execute(
            """
            INSERT INTO telephony_call (organization_id, purpose, subject_id, attempt, account_id, number_id,
                pool_id, line_slot, pool_slot, to_phone, from_phone, ring_timeout_s, time_limit_s, detect_machine,
                status, not_before, place_by, requested_at, created_at, ended_at, empty_listings, last_sequence,
                answered_by, keys_pressed, context, error_code, error_message, customer)
            SELECT %(organization)s, 'offer', n, 1, %(account)s, %(number)s, %(pool)s, 1, 1,
                '+1602' || 2550000 + n, '+16025550000', 30, 300, false, 'completed', at, at, at, at, at, 0, -1,
                '', '', '{}', '', '', ''
            FROM generate_series(1, %(rows)s) n, (SELECT now() - interval '60 days' AS at) past
            """,
            {
                "organization": organization.pk, "account": number.account_id, "number": number.pk,
                "pool": number.pool_id, "rows": ROWS,
            },
        )  # fmt: skip
    forget_statistics(["telephony_call"])
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE telephony_call RESET (autovacuum_enabled)")


def rows_scanned() -> int:
    """Return how many calls sequential scans of all sessions have read."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        cursor.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'telephony_call'")
        return int(cursor.fetchone()[0])


@pytest.mark.usefixtures("ended_calls")
def test_passes_without_due_calls_read_no_ended_calls() -> None:
    now = clock.now()
    due_long = Call.objects.filter(not_before__lte=now, status=Call.Status.CREATED).order_by("not_before")
    passes: dict[str, Callable[[], object]] = {
        "place": lambda: sql.calls_to_place(now, 10),
        "look up": lambda: sql.unknown_rows(Call, now, 10, (), ()),
        "end": lambda: sql.overdue_ends(now, now - timedelta(minutes=1), 10, (), ()),
        "hang up": lambda: sql.due_hang_ups(now, 10, (), ()),
        "judge": number_health.read_call_health,
        "any": lambda: unlocked_ids(Call.objects.filter(hang_up_at__lte=now), 10),
        "lock": lambda: unlocked_ids(due_long, 10),
    }
    scanned = {}
    for name, look in passes.items():
        before = rows_scanned()
        assert not look(), name
        scanned[name] = rows_scanned() - before
    # The sessions of earlier tests may report the few rows that they read as late as now.
    assert [name for name, rows in scanned.items() if rows >= ROWS] == []
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_seqscan")
        assert cursor.fetchone() == ("on",)  # the choice ended with each pass


def test_open_calls_that_are_not_overdue_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass runs every few seconds beside thousands of calls in progress."""
    number = factories.number(factories.organization(), max_channels=300)
    now = clock.now()
    Call.objects.bulk_create(
        Call(
            organization_id=number.organization_id, purpose="offer", subject_id=n, attempt=1, sid=f"CA{n}",
            account_id=number.account_id, number=number, pool_id=number.pool_id, line_slot=n, pool_slot=n,
            to_phone=f"+1602{2550000 + n}", from_phone=number.phone, place_by=now, status="answered",
            requested_at=now, answered_at=now, time_limit_s=300,
        )
        for n in range(1, 301)
    )  # fmt: skip
    decrypted: list[object] = []
    with monkeypatch.context() as patch, CaptureQueriesContext(connection) as queries:
        patch.setattr(crypto, "decrypt", decrypted.append)
        assert not reconciliation.fetch_overdue_ends()
    assert not [query["sql"] for query in queries if "provideraccount" in query["sql"]]
    assert not decrypted
    clock.travel(300 + rules.END_MARGIN.total_seconds() + 1)
    assert len(sql.overdue_ends(clock.now(), now, 500, (), ())) == 300, "later they are asked about"


def analyze(tables: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {', '.join(tables)}")


def test_no_texts_that_ended_are_read_to_postpone_those_that_wait() -> None:
    text = due_text(factories.organization())
    number = {"subject_id": "1000000 + n", "to_phone": "'+1602' || 7550000 + n"}
    assert copy_row(text, ROWS, {**number, "status": "'delivered'", "requested_at": "now()"}) == ROWS
    assert copy_row(text, 50, {**number, "subject_id": "2000000 + n"}) == 50
    given = {
        "id": text.pk, "number": text.number_id, "account": text.account_id, "organization": text.organization_id,
        "purposes": None, "why": "", "pause_s": 2.0,
    }  # fmt: skip
    read = {}
    for state in (forget_statistics, pretend_empty, analyze):
        for name in ("_POSTPONE_OF_NUMBER", "_POSTPONE_HELD"):
            now = clock.now()
            Text.objects.filter(status="created").update(not_before=now)
            state(["telephony_text"])
            read[name, state.__name__] = explain_rows_read(getattr(sql, name), {**given, "now": now})
            assert Text.objects.filter(not_before__gt=now).exists()
    assert max(read.values()) < 500, read
