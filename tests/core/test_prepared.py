"""Hand-written statements are planned once, not at each run, and their plans do not become stale."""

from __future__ import annotations

import select

import pytest
from django.db import connection, transaction

from dispatch.core.db import prepared
from dispatch.core.db.lock_waits import apply_limit, limit_lock_waits, limited_transaction, short_wait
from dispatch.core.db.postgres import base
from tests.support.database import reconnect
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = "SELECT count(*) FROM core_event WHERE organization_id = ANY(%(ids)s::bigint[])"


@pytest.fixture(autouse=True)
def _own_session(transactional_db: None) -> None:
    """Use a fresh connection, so that all prepared statements are this test's."""
    reconnect()


def plans(statement: str = COUNT) -> list[tuple[int, int]]:
    """Return how often each such statement of this connection ran with a generic and with a custom plan."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE %s",
            [statement.partition("%")[0] + "%"],
        )
        return list(cursor.fetchall())


def test_a_statement_is_prepared_once_and_one_of_djangos_never():
    for _ in range(3):
        assert prepared.fetch_all(COUNT, {"ids": [1]}) == [(0,)]
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM accounts_user WHERE id = %s", [1])
    assert [sum(found) for found in plans()] == [3]
    assert plans("SELECT count(*) FROM accounts_user WHERE id = %s") == []


def test_one_plan_is_used_until_the_transaction_ends():
    with transaction.atomic(), prepared.pipeline(one_plan=True):
        prepared.fetch_all(COUNT, {"ids": [1]})
        prepared.fetch_all(COUNT, {"ids": [1, 2, 3]})
    assert plans() == [(2, 0)]
    prepared.fetch_all(COUNT, {"ids": [1]})
    assert plans() == [(2, 1)]


def test_plans_are_renewed_after_a_while(monkeypatch):
    prepared.fetch_all(COUNT, {"ids": [1]})
    asked: list[bytes] = []
    execute = prepared.psycopg.Cursor.execute

    def listen(cursor, query, *args, **kwargs):
        asked.append(query)
        return execute(cursor, query, *args, **kwargs)

    monkeypatch.setattr(prepared.psycopg.Cursor, "execute", listen)
    prepared.fetch_all(COUNT, {"ids": [1]})
    assert b"DISCARD PLANS" not in asked
    monkeypatch.setattr(prepared, "PLANS_S", 0.0)
    prepared.fetch_all(COUNT, {"ids": [1]})
    assert b"DISCARD PLANS" in asked


def test_results_are_complete_when_plans_are_renewed(monkeypatch):
    # Longer than the server's buffer, so that the message about the plans arrives before the rest of the response.
    long = "SELECT repeat('x', 9000), pg_sleep(0.05) FROM generate_series(1, 3)"
    prepared.fetch_all(COUNT, {"ids": [1]})
    monkeypatch.setattr(prepared, "PLANS_S", 0.0)
    with transaction.atomic(), prepared.pipeline():
        answer = prepared.fetch_later(long)
        prepared.execute("SELECT 1")
        assert select.select([connection.connection.fileno()], [], [], PATIENCE)[0]
        prepared.execute("SELECT 1")
        assert len(answer()) == 3


def setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements with SET that `set_local` sends, each with all that is sent with it."""
    found: list[str] = []
    run_script, execute = base._run_script, base.psycopg.Cursor.execute

    def run(raw, script):
        found.append(script)
        run_script(raw, script)

    def listen(cursor, query, *args, **kwargs):
        if isinstance(query, bytes) and query.startswith(b"SET LOCAL"):
            found.append(query.decode())
        return execute(cursor, query, *args, **kwargs)

    monkeypatch.setattr(base, "_run_script", run)
    monkeypatch.setattr(base.psycopg.Cursor, "execute", listen)
    return found


def test_a_transaction_begins_with_its_parameters(sent):
    before = setting("lock_timeout"), setting("synchronous_commit")
    with limit_lock_waits(1.5):
        with limited_transaction(defers_fsync=True):
            apply_limit()
            prepared.defer_fsync()
            assert (setting("lock_timeout"), setting("synchronous_commit")) == ("1500ms", "off")
        assert sent == ["BEGIN; SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = 1500"]
        assert (setting("lock_timeout"), setting("synchronous_commit")) == before
        with limited_transaction():  # the next one has to say it again
            assert (setting("lock_timeout"), setting("synchronous_commit")) == ("1500ms", before[1])
        with transaction.atomic():  # also if it has begun
            assert setting("lock_timeout") == before[0]
            apply_limit()
            assert setting("lock_timeout") == "1500ms"


def test_a_limit_applies_again_after_a_savepoint_that_was_rolled_back():
    with limit_lock_waits(1.5), limited_transaction():
        with pytest.raises(RuntimeError), transaction.atomic():
            with short_wait(0.25):
                assert setting("lock_timeout") == "250ms"
            raise RuntimeError
        apply_limit()
        assert setting("lock_timeout") == "1500ms"
        with short_wait(0.25):
            assert setting("lock_timeout") == "250ms"
        assert setting("lock_timeout") == "1500ms"


def test_a_transaction_that_was_rolled_back_leaves_no_parameter():
    before = setting("synchronous_commit")
    with pytest.raises(RuntimeError), transaction.atomic():
        prepared.defer_fsync()
        raise RuntimeError
    with transaction.atomic():
        assert setting("synchronous_commit") == before
        with prepared.pipeline():
            prepared.defer_fsync()
        assert setting("synchronous_commit") == "off"
