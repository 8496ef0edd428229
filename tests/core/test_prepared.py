"""Hand-written statements are planned once, not at each run, and their plans do not become stale."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.db import DataError, IntegrityError, NotSupportedError, ProgrammingError, connection, transaction
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from dispatch.core.db import prepared
from dispatch.core.db.errors import is_temporary
from dispatch.core.db.lock_waits import apply_limit, limit_lock_waits, limited_transaction, short_wait
from dispatch.core.db.postgres import base, prepared_statements, statements
from tests.support.database import reconnect

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
    asked: list[str] = []
    run_script = prepared.run_script

    def listen(raw, script):
        asked.append(script)
        run_script(raw, script)

    monkeypatch.setattr(prepared, "run_script", listen)
    prepared.fetch_all(COUNT, {"ids": [1]})
    assert asked == []
    monkeypatch.setattr(prepared, "PLANS_S", 0.0)
    prepared.fetch_all(COUNT, {"ids": [1]})
    assert asked == ["DISCARD PLANS"]


def test_results_are_complete_when_plans_are_renewed(monkeypatch):
    long = "SELECT repeat('x', 9000) FROM generate_series(1, 3)"
    prepared.fetch_all(COUNT, {"ids": [1]})
    monkeypatch.setattr(prepared, "PLANS_S", 0.0)
    with transaction.atomic(), prepared.pipeline():
        answer = prepared.fetch_later(long)
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
    run_script = base.run_script

    def run(raw, script):
        if "SET LOCAL" in script:
            found.append(script)
        run_script(raw, script)

    for module in (base, statements):
        monkeypatch.setattr(module, "run_script", run)
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


def test_transaction_begins_with_its_first_statement(sent):
    with limit_lock_waits(1.5), limited_transaction():
        assert prepared.fetch_all("SHOW lock_timeout") == [("1500ms",)]
        assert prepared.fetch_all("SELECT now() < clock_timestamp(), now() = statement_timestamp()") == [
            (True, False)
        ]
    with limit_lock_waits(1.5), limited_transaction():
        with pytest.raises(DataError), transaction.atomic():
            prepared.fetch_all("SELECT 1 / 0")
        assert setting("lock_timeout") == "1500ms"
    with limited_transaction(defers_fsync=True), prepared.pipeline():
        prepared.defer_fsync()
        assert prepared.fetch_all("SHOW synchronous_commit") == [("off",)]
    with limited_transaction(defers_fsync=True):
        pass  # without a statement
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE
    assert sent == []  # alone


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_transaction_has_the_isolation_level_of_its_connection(level):
    connection.ensure_connection()
    connection.connection.isolation_level = level
    try:
        with transaction.atomic():
            found = prepared.fetch_all("SHOW transaction_isolation")
        with transaction.atomic(), prepared.pipeline():
            assert prepared.fetch_all("SHOW transaction_isolation") == found
        assert found == [(level.name.replace("_", " ").lower(),)]
    finally:
        connection.connection.isolation_level = None


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


def prepared_names() -> set[str]:
    """Return the names of this connection's prepared statements in PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return {name for (name,) in cursor.fetchall()}


def test_statements_stay_prepared_after_a_rollback():
    with transaction.atomic(), prepared.pipeline():
        prepared.execute("SELECT 2 WHERE %s", [True])
    prepared.fetch_all(COUNT, {"ids": [1]})
    before = prepared_names()
    assert len(before) == 2
    with pytest.raises(RuntimeError), transaction.atomic():
        with pytest.raises(IntegrityError), transaction.atomic():
            prepared.fetch_all("INSERT INTO core_event DEFAULT VALUES RETURNING id")
        assert prepared.fetch_all(COUNT, {"ids": [1]}) == [(0,)]
        raise RuntimeError
    assert prepared.fetch_all(COUNT, {"ids": [1]}) == [(0,)]
    assert before < prepared_names()
    assert [sum(found) for found in plans()] == [3]


def test_statement_of_a_failed_pipeline_is_prepared_again():
    with pytest.raises(DataError), transaction.atomic(), prepared.pipeline():
        prepared.execute("SELECT 1 / %s::int", [0])
        prepared.fetch_later(COUNT, {"ids": [1]})  # PostgreSQL skips it
    with transaction.atomic(), prepared.pipeline():
        answer = prepared.fetch_later(COUNT, {"ids": [1]})
    assert answer() == [(0,)]
    assert prepared.fetch_all(COUNT, {"ids": [1]}) == [(0,)]
    assert [sum(found) for found in plans()] == [2]


@pytest.mark.parametrize("in_pipelines", [False, True])
def test_statements_run_again_after_a_column_was_widened(in_pipelines):
    """A migration of the next version widens a column that this version's statements return."""
    together = prepared.pipeline if in_pipelines else nullcontext
    by_name, by_id = "SELECT id, name FROM label WHERE name = %s", "SELECT id, name FROM label WHERE id = %s"

    def read() -> list[Any]:
        with transaction.atomic(), together():
            answers = [prepared.fetch_later(by_name, ["a"]), prepared.fetch_later(by_id, [1])]
            return [answer() for answer in answers]

    execute("CREATE TEMPORARY TABLE label AS SELECT 1 AS id, 'a'::varchar(8) AS name")
    assert read() == [[(1, "a")]] * 2
    before = prepared_texts()
    execute("ALTER TABLE label ALTER name TYPE varchar(16)")
    with pytest.raises(NotSupportedError) as refused:
        read()
    assert is_temporary(refused.value)
    assert read() == [[(1, "a")]] * 2
    # PgBouncer would replace a text that it knows by the statement that was refused
    assert len(prepared_texts() - before) == 2


def prepared_texts() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%FROM label%'")
        return {text for (text,) in cursor.fetchall()}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_statements_of_the_orm_follow_those_that_wait_in_a_pipeline():
    with transaction.atomic(), prepared.pipeline():
        prepared.execute("CREATE TEMP TABLE waits (n int) ON COMMIT DROP")
        prepared.execute("INSERT INTO waits VALUES (%s)", [1])
        with connection.cursor() as cursor:
            cursor.execute("SELECT n FROM waits")
            assert cursor.fetchall() == [(1,)]
        later = prepared.fetch_later("SELECT n FROM waits")
        with transaction.atomic():
            prepared.execute("UPDATE waits SET n = 2")
        assert later() == [(1,)]
        assert prepared.fetch_all("SELECT n FROM waits") == [(2,)]


def test_savepoint_takes_with_it_what_waits_in_a_pipeline():
    with transaction.atomic(), prepared.pipeline():
        prepared.execute("CREATE TEMP TABLE waits (n int) ON COMMIT DROP")
        with pytest.raises(RuntimeError), transaction.atomic():
            prepared.execute("INSERT INTO waits VALUES (1)")
            raise RuntimeError
        assert prepared.fetch_all("SELECT n FROM waits") == []


@pytest.mark.parametrize("fails", ["", "at once", "at its end"])
def test_pipeline_without_a_transaction_is_one(fails):
    before = setting("enable_seqscan")
    try:
        with prepared.index_plans():
            assert setting("enable_seqscan") == "off"  # by a statement of the ORM
            assert prepared.fetch_all("SHOW enable_seqscan") == [("off",)]
            if fails:
                (prepared.fetch_all if fails == "at once" else prepared.execute)("SELECT 1 / 0")
        assert not fails
    except DataError:
        assert fails
    assert setting("enable_seqscan") == before
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE


def test_pipeline_whose_end_fails_changes_nothing():
    add = "INSERT INTO core_eventcursor (name, xid, event_id, moved_at) VALUES ('waits', 0, 0, now())"

    def names() -> list[tuple[Any, ...]]:
        return prepared.fetch_all("SELECT name FROM core_eventcursor WHERE name = 'waits'")

    with pytest.raises(DataError), prepared.pipeline():
        prepared.execute(add)
        prepared.execute("SELECT 1 / 0")
    assert names() == []
    with pytest.raises(RuntimeError), prepared.pipeline():
        prepared.execute(add)
        assert names() == [("waits",)]
        raise RuntimeError
    assert names() == []


def test_result_of_a_failed_pipeline_cannot_be_read():
    with pytest.raises(DataError), prepared.pipeline():
        prepared.execute("SELECT 1 / 0")
        later = prepared.fetch_later("SELECT 1")
    with pytest.raises(ProgrammingError):
        later()


def test_connection_whose_pipeline_was_interrupted_is_replaced(monkeypatch):
    class Interrupted(BaseException):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    prepared.fetch_all("SELECT 1")
    before = connection.connection
    with pytest.raises(Interrupted), signals(interrupt, after_s=0.2), prepared.pipeline():
        prepared.execute("SELECT pg_sleep(2)")
    assert before.closed
    reconnect()
    assert prepared.fetch_all("SELECT 1") == [(1,)]


@contextmanager
def signals(handler: Callable[..., None], *, after_s: float) -> Iterator[None]:
    """Call `handler` in the main thread after that time, as RQ does when a job takes too long."""
    earlier = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def test_many_large_statements_and_results_fit_into_one_pipeline():
    text = "x" * 200_000
    with transaction.atomic(), prepared.pipeline():
        answers = [prepared.fetch_later("SELECT repeat(%s::text, 2), %s::int", [text, n]) for n in range(40)]
    assert [(len(long), n) for ((long, n),) in (answer() for answer in answers)] == [
        (400_000, n) for n in range(40)
    ]


def test_unfetched_result_is_not_mixed_up_with_a_later_one():
    first = prepared.fetch_later("SELECT %s::int", [1])
    second = prepared.fetch_later("SELECT %s::int", [2])
    assert (first(), second()) == ([(1,)], [(2,)])


@pytest.mark.parametrize("in_pipelines", [False, True])
def test_statement_unused_for_long_is_deallocated(monkeypatch, in_pipelines):
    monkeypatch.setattr(prepared_statements, "MAX_PREPARED", 3)
    for count in (1, 2, 3, 4, 5, 1):
        with prepared.pipeline() if in_pipelines else nullcontext():
            assert prepared.fetch_all(f"SELECT %s::int + {count}", [10]) == [(10 + count,)]
    assert len(prepared_names()) == 3


@pytest.mark.parametrize(
    ("sql", "params", "rows"),
    [
        ("SELECT %s::text || '%%' LIKE 'a%%'", ["ab"], [(True,)]),
        ("SELECT %(a)s::int, %(b)s::int, %(a)s::int", {"b": 2, "a": 1}, [(1, 2, 1)]),
        ("SELECT 10 %% 4", None, [(2,)]),
        ("SELECT NULL::jsonb, '{\"a\": 1}'::jsonb", [], [(None, '{"a": 1}')]),
    ],
)
def test_placeholders_are_those_of_the_driver(sql, params, rows):
    assert prepared.fetch_all(sql, params) == rows
    with transaction.atomic(), prepared.pipeline():
        assert prepared.fetch_all(sql, params) == rows


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT %s::int", []),
        ("SELECT 1", [1]),
        ("SELECT %(a)s::int", {"b": 1}),
        ("SELECT %(a)s::int", [1]),
        ("SELECT %s::int, %(a)s::int", {"a": 1}),
        ("SELECT 10 % 4", None),
        ("SELECT 10 %d", [1]),
    ],
)
def test_statement_with_other_parameters_is_refused(sql, params):
    with pytest.raises(ProgrammingError):
        prepared.fetch_all(sql, params)
    assert prepared.fetch_all("SELECT 1") == [(1,)]


def test_statement_without_rows_has_none_to_return():
    with pytest.raises(ProgrammingError):
        prepared.fetch_all("SET application_name = 'test'")
    assert prepared.execute_rowcount("UPDATE accounts_user SET email = email WHERE id < %s", [0]) == 0
