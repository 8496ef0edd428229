"""A change whose result is not needed yet waits for the next statement, and nothing else about it is different."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    OperationalError,
    connection,
    transaction,
)
from psycopg.pq import TransactionStatus

from dispatch.core.db import prepared
from dispatch.core.db.lock_waits import apply_limit, limit_lock_waits
from dispatch.core.db.postgres import prepared_statements, statements
from tests.support.database import reconnect

pytestmark = pytest.mark.django_db(transaction=True)

ADD = "INSERT INTO waiting_things (n) VALUES (%s) RETURNING n"
ALL = "SELECT n FROM waiting_things ORDER BY n"
DIVIDE = "SELECT 1 / %s::int"


@pytest.fixture(autouse=True)
def things(transactional_db: None) -> Iterator[None]:
    """A table of numbers: each at most once by the end of the transaction, and none below zero."""
    reconnect()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS waiting_things")
        cursor.execute(
            "CREATE TABLE waiting_things (n int CHECK (n >= 0), UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)"
        )
    yield
    reconnect()
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE waiting_things")


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each round trip to the server had."""
    found: list[int] = []
    send, wait = statements.Pipeline._send, prepared_statements.wait_for_result

    def counted(pipeline: statements.Pipeline) -> None:
        found.append(len(pipeline._commands))
        send(pipeline)

    def waited(raw: Any) -> Any:
        found.append(1)
        return wait(raw)

    monkeypatch.setattr(statements.Pipeline, "_send", counted)
    monkeypatch.setattr(prepared_statements, "wait_for_result", waited)
    return found


def add(n: int, **informed: Callable[[Any], None]) -> None:
    """Add a number later."""
    prepared.change_later(ADD, [n], **informed)


def numbers() -> list[int]:
    """Return the numbers as this session sees them."""
    return [n for (n,) in prepared.fetch_all(ALL)]


def test_changes_are_sent_in_order_with_the_next_statement(round_trips):
    prepared.fetch_all(ALL)
    prepared.fetch_all(ADD, [9])
    round_trips.clear()
    with transaction.atomic():
        add(1)
        with transaction.atomic():
            pass
        add(2)
        prepared.change_later("UPDATE waiting_things SET n = n + 10 WHERE n < 3")
        add(3)
        assert round_trips == [3]  # the beginning, the first change and the savepoint
        assert numbers() == [3, 9, 11, 12]
    assert len(round_trips) == 3  # with the commit
    assert numbers() == [3, 9, 11, 12]


def test_error_that_was_caught_inside_a_savepoint_is_raised_at_its_end():
    with transaction.atomic():
        add(1)
        with (
            pytest.raises(DatabaseError, match="has failed"),
            transaction.atomic(),
            pytest.raises(DataError),
        ):
            prepared.fetch_all(DIVIDE, [0])
        assert numbers() == [1]


def test_changes_are_committed_with_the_transaction(round_trips):
    with transaction.atomic():
        add(1)
        add(2)
        assert round_trips == []
    assert len(round_trips) == 1
    assert numbers() == [1, 2]


def test_changes_of_a_transaction_that_is_rolled_back_are_not_sent(round_trips):
    with pytest.raises(RuntimeError), transaction.atomic():
        add(1)
        raise RuntimeError
    assert round_trips == []
    assert numbers() == []


@pytest.mark.parametrize("before", [(), (5,)], ids=["nothing before", "a change before"])
def test_error_of_a_change_belongs_to_its_savepoint(before):
    with transaction.atomic():
        for n in before:
            add(n)
        with pytest.raises(DataError), transaction.atomic():
            add(1)
            prepared.change_later(DIVIDE, [0])
        add(2)
    assert numbers() == [2, *before]


def test_error_of_an_earlier_change_does_not_belong_to_the_savepoint():
    entered = []
    with pytest.raises(IntegrityError), transaction.atomic():
        add(-1)
        with transaction.atomic():
            entered.append(True)
    assert entered == []
    assert numbers() == []


def test_savepoint_that_was_not_sent_takes_its_changes_with_it():
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            add(1)
            raise RuntimeError
        add(2)
        with transaction.atomic(), pytest.raises(RuntimeError), transaction.atomic():
            add(3)
            with transaction.atomic():
                add(4)
            raise RuntimeError
        add(5)
    assert numbers() == [2, 5]


def test_savepoint_stays_when_it_is_rolled_back_by_hand():
    with transaction.atomic():
        kept = transaction.savepoint()
        add(1)
        transaction.savepoint_rollback(kept)
        add(2)
        assert numbers() == [2]
        transaction.savepoint_rollback(kept)
        add(3)
        transaction.savepoint_commit(kept)
    assert numbers() == [3]


def test_limit_set_after_a_change_applies_from_then_on():
    with limit_lock_waits(1.5), transaction.atomic():
        add(1)
        with transaction.atomic():
            apply_limit()
        assert prepared.fetch_all("SHOW lock_timeout") == [("1500ms",)]
    assert numbers() == [1]


def test_statements_of_the_orm_follow_the_changes():
    with transaction.atomic():
        add(1)
        with connection.cursor() as cursor:
            cursor.execute(ALL)
            assert cursor.fetchall() == [(1,)]
        add(2)
    with transaction.atomic():
        add(3)
        with prepared.pipeline():
            add(4)
            found = prepared.fetch_later(ALL)
            add(5)
        assert found() == [(1,), (2,), (3,), (4,)]
    assert numbers() == [1, 2, 3, 4, 5]


def test_changes_of_a_pipeline_are_sent_with_the_next_statement_or_the_commit(round_trips):
    with transaction.atomic():
        with prepared.pipeline():
            add(1)
            found = prepared.fetch_later(ALL)
            add(2)
            assert found() == [(1,)]
            add(3)
        assert len(round_trips) == 1
    assert len(round_trips) == 2
    assert numbers() == [1, 2, 3]
    round_trips.clear()
    with transaction.atomic(), prepared.pipeline():
        add(4)
    assert len(round_trips) == 1
    with transaction.atomic(), prepared.pipeline():
        prepared.fetch_later(ALL)
        add(5)
    assert len(round_trips) == 3
    assert numbers() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("pending", [add, lambda n: prepared.execute(ADD, [n])])
@pytest.mark.parametrize("before", [0, 1])
def test_pipeline_that_is_left_by_an_exception_fails_its_transaction(pending, before):
    with pytest.raises(DatabaseError, match="were not sent"), transaction.atomic():
        prepared.execute(ADD, [before]) if before else None
        with pytest.raises(RuntimeError), prepared.pipeline():
            pending(2)
            raise RuntimeError
        with suppress(DatabaseError), transaction.atomic():
            add(3)
    assert numbers() == []


@pytest.mark.parametrize("pending", [add, lambda n: prepared.execute(ADD, [n])])
@pytest.mark.parametrize("before", [[], [1]])
@pytest.mark.parametrize("plans_s", [0.0, 1000.0])  # whether plans are discarded before each statement
def test_pipeline_that_is_left_by_an_exception_fails_only_its_savepoint(monkeypatch, plans_s, before, pending):
    monkeypatch.setattr(prepared, "PLANS_S", plans_s)
    with transaction.atomic():
        for n in before:
            add(n)
        with pytest.raises(RuntimeError), transaction.atomic(), prepared.pipeline():
            pending(2)
            raise RuntimeError
        add(3)
    assert numbers() == [*before, 3]


def test_pipeline_that_has_sent_its_statements_may_be_left_by_an_exception():
    with transaction.atomic():
        add(1)
        with pytest.raises(RuntimeError), prepared.pipeline():
            raise RuntimeError
        with pytest.raises(RuntimeError), prepared.pipeline():
            add(2)
            prepared.fetch_all(ALL)
            raise RuntimeError
        add(3)
    assert numbers() == [1, 2, 3]


def test_error_inside_a_pipeline_rolls_back_its_transaction():
    add(1)
    add(3)
    with pytest.raises(DataError), transaction.atomic(), prepared.pipeline():
        add(4)
        prepared.fetch_all(DIVIDE, [0])
    assert numbers() == [1, 3]


def test_changes_of_a_pipeline_outside_a_transaction_are_sent_at_its_end():
    with prepared.pipeline():
        add(1)
        prepared.execute("SELECT 1")
    assert numbers() == [1]
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE


def test_statements_of_an_open_cursor_follow_the_changes():
    with connection.cursor() as cursor, transaction.atomic():
        add(1)
        cursor.execute(ALL)
        assert cursor.fetchall() == [(1,)]
        with pytest.raises(DataError), transaction.atomic():
            cursor.execute("SELECT 1 / 0")
        add(2)
        cursor.executemany("INSERT INTO waiting_things (n) VALUES (%s)", [[3], [4]])
        add(5)
        with cursor.copy("COPY waiting_things FROM STDIN") as copy:
            copy.write_row([6])
    assert numbers() == [1, 2, 3, 4, 5, 6]


def test_changes_do_not_outlive_their_connection():
    with transaction.atomic():
        add(1)
        raw = connection.connection
        connection.close()  # its pool may hand it out again
    assert statements.Statements.of(raw).waiting == []
    assert numbers() == []


def test_change_that_finds_no_row_is_refused_with_the_commit(round_trips):
    changed = "UPDATE waiting_things SET n = 99 WHERE n = 9 RETURNING n"
    set_99 = f"WITH changed AS ({changed}) SELECT 1 / count(*) FROM changed"
    with pytest.raises(DatabaseError, match="there is no 9"), transaction.atomic():
        add(1)
        prepared.change_later(set_99, refusal="there is no 9")
        add(2)
    assert len(round_trips) == 1  # with the commit
    assert numbers() == []
    with pytest.raises(DatabaseError, match="there is no 9"):
        prepared.change_later(set_99, refusal="there is no 9")
    with pytest.raises(DataError, match="division by zero"), transaction.atomic():
        prepared.change_later(DIVIDE, [0])
        prepared.change_later(set_99, refusal="there is no 9")


def test_results_arrive_when_the_changes_are_sent():
    found: list[Any] = []
    with transaction.atomic():
        add(1, then=lambda result: found.append(result.fetchall()))
        assert found == []
        with prepared.pipeline():
            add(2, then=lambda result: found.append(result.fetchall()))
        assert found == []
        numbers()
        assert found == [[(1,)], [(2,)]]
        add(3, then=lambda result: found.append(result.fetchall()))
    add(4, then=lambda result: found.append(result.fetchall()))
    assert found == [[(1,)], [(2,)], [(3,)], [(4,)]]


def test_error_of_the_commit_changes_nothing():
    add(1)
    with pytest.raises(IntegrityError), transaction.atomic():
        add(2)
        add(1)
    assert numbers() == [1]
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE


def test_changes_have_the_values_that_they_were_given():
    values = [1]
    with transaction.atomic():
        prepared.change_later(ADD, values)
        values[0] = 2
    assert numbers() == [1]


def test_value_that_cannot_be_sent_is_refused_at_once():
    with transaction.atomic():
        with pytest.raises(DatabaseError):
            prepared.change_later(ADD, [object()])
        add(1)
    assert numbers() == [1]


def test_server_that_ends_the_session_loses_all_changes_or_none():
    with pytest.raises(OperationalError), transaction.atomic():
        add(1)
        ((pid,),) = prepared.fetch_all("SELECT pg_backend_pid()")
        add(2)
        _end_session(pid)
    reconnect()
    assert numbers() == []


def _end_session(pid: int) -> None:
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    finally:
        other.close()


def test_change_that_cannot_be_sent_fails_its_transaction_and_no_other():
    too_many = 2**16
    everything = f"SELECT {', '.join(['%s::int'] * too_many)}"
    with pytest.raises(DatabaseError), transaction.atomic():
        add(1)
        prepared.change_later(everything, [1] * too_many)
        add(2)
    reconnect()
    with transaction.atomic():
        add(3)
    assert numbers() == [3]


def test_lock_timeout_of_a_change_belongs_to_its_savepoint():
    prepared.fetch_all(ADD, [1])
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("UPDATE waiting_things SET n = 5 WHERE n = 1")
        with limit_lock_waits(0.05), transaction.atomic():
            add(2)
            with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
                apply_limit()
                prepared.change_later("UPDATE waiting_things SET n = 7 WHERE n = 1")
                add(3)
            add(4)
        other.rollback()
    finally:
        other.close()
    assert numbers() == [1, 2, 4]
