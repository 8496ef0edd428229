"""Hand-written statements are planned once, not at each run, and their plans do not grow old."""

from __future__ import annotations

import select

import pytest
from django.db import connection, transaction

from dispatch.core import statements
from tests.connecting import connect_anew
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = "SELECT count(*) FROM core_event WHERE organization_id = ANY(%(ids)s::bigint[])"


@pytest.fixture(autouse=True)
def _own_session(transactional_db: None) -> None:
    """What is prepared on a connection is of this test."""
    connect_anew()


def plans(statement: str = COUNT) -> list[tuple[int, int]]:
    """How often each such statement of this connection ran with a plan for all, and with one of its own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE %s",
            [statement.partition("%")[0] + "%"],
        )
        return list(cursor.fetchall())


def test_a_statement_is_prepared_once_and_one_of_djangos_never():
    for _ in range(3):
        assert statements.rows(COUNT, {"ids": [1]}) == [(0,)]
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM accounts_user WHERE id = %s", [1])
    assert [sum(found) for found in plans()] == [3]
    assert plans("SELECT count(*) FROM accounts_user WHERE id = %s") == []


def test_one_plan_serves_all_until_the_transaction_ends():
    with transaction.atomic(), statements.pipelined(one_plan=True):
        statements.rows(COUNT, {"ids": [1]})
        statements.rows(COUNT, {"ids": [1, 2, 3]})
    assert plans() == [(2, 0)]
    statements.rows(COUNT, {"ids": [1]})
    assert plans() == [(2, 1)]


def test_plans_are_made_anew_after_a_while(monkeypatch):
    statements.rows(COUNT, {"ids": [1]})
    asked: list[bytes] = []
    execute = statements.psycopg.Cursor.execute

    def listen(cursor, query, *args, **kwargs):
        asked.append(query)
        return execute(cursor, query, *args, **kwargs)

    monkeypatch.setattr(statements.psycopg.Cursor, "execute", listen)
    statements.rows(COUNT, {"ids": [1]})
    assert b"DISCARD PLANS" not in asked
    monkeypatch.setattr(statements, "PLANS_S", 0.0)
    statements.rows(COUNT, {"ids": [1]})
    assert b"DISCARD PLANS" in asked


def test_answers_stay_whole_when_plans_are_made_anew_in_a_pipeline(monkeypatch):
    # Longer than the server's buffer, so that the word about the plans arrives before the rest of the answer.
    long = "SELECT repeat('x', 9000), pg_sleep(0.05) FROM generate_series(1, 3)"
    statements.rows(COUNT, {"ids": [1]})
    monkeypatch.setattr(statements, "PLANS_S", 0.0)
    with transaction.atomic(), statements.pipelined():
        answer = statements.ask(long)
        statements.do("SELECT 1")
        assert select.select([connection.connection.fileno()], [], [], PATIENCE)[0]
        statements.do("SELECT 1")
        assert len(answer()) == 3
