"""The pool of the web process checks connections without a statement for each request."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from django.db import connections

from dispatch.core.db.postgres import base
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pooled connections that were checked by a statement."""
    found: list[Any] = []
    check = base.ConnectionPool.check_connection

    def record(connection: Any) -> None:
        found.append(connection)
        check(connection)

    monkeypatch.setattr(base.ConnectionPool, "check_connection", staticmethod(record))
    return found


def backend() -> int:
    """Return the process id of the server behind a connection that is taken from the pool and given back."""
    with closing(connections.create_connection("default")) as taken, taken.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_a_quiet_connection_is_reused_without_a_statement(checked: list[Any]) -> None:
    backend()
    checked.clear()  # connections that earlier tests left to the pool
    for _ in range(3):
        backend()
    assert checked == []


def test_the_connection_returned_last_is_used_again() -> None:
    taken = [connections.create_connection("default") for _ in range(3)]
    pids = []
    for one in taken:
        with one.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
    for one in (taken[1], taken[2], taken[0]):
        one.close()
    assert len(set(pids)) == 3
    assert [backend() for _ in range(4)] == [pids[0]] * 4


def test_the_pool_closes_what_was_not_needed_for_longest() -> None:
    taken = [connections.create_connection("default") for _ in range(3)]
    for one in taken:
        one.ensure_connection()
    for one in taken:
        one.close()
    newest = backend()
    pool = connections["default"].pool

    def is_shrunk() -> bool:
        pool._shrink_pool()  # as every ten minutes
        assert backend() == newest
        return len(pool._pool) == 1

    wait_until(is_shrunk)


def test_a_connection_that_the_server_ended_is_replaced(checked: list[Any]) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1")  # this thread's connection is not the one that ends
        ended = backend()
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s", [ended])

        def is_gone() -> bool:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [ended])
            return cursor.fetchone() == (0,)

        wait_until(is_gone)
        assert all(backend() != ended for _ in range(3))


def test_a_kept_connection_is_asked_only_if_the_server_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    is_usable = base.DatabaseWrapper.is_usable
    monkeypatch.setattr(base.DatabaseWrapper, "is_usable", lambda own: asked.append(own) or is_usable(own))
    settings = dict(connections["default"].settings_dict)
    settings["OPTIONS"] = {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
    with closing(base.DatabaseWrapper({**settings, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True})) as kept:

        def backend_of_next_step() -> int:
            kept.close_if_unusable_or_obsolete()
            with kept.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                return int(cursor.fetchone()[0])

        first = backend_of_next_step()
        assert (backend_of_next_step(), asked) == (first, [])

        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [first])
        wait_until(lambda: not base.is_quiet(kept.connection))
        assert backend_of_next_step() != first
        assert asked == [kept]
