"""Reconnect to the test database, and empty it between tests that commit.

Only tables with rows are emptied, in one round trip, which takes milliseconds. Django's flush truncates every
table and recreates permissions, which takes half a second here. Foreign keys are deferred to the commit, so the
order does not matter.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.db import InternalError, OperationalError, connection, connections, transaction
from django.test import TransactionTestCase
from psycopg.errors import DeadlockDetected, ReadOnlySqlTransaction

from dispatch.core.db.postgres.prepared_statements import Params, PreparedStatements
from dispatch.dev import embedded_servers
from tests.support.waiting import PATIENCE

# Filled by migrations, the same for every test.
KEPT = {"django_migrations", "django_content_type", "auth_permission"}

_EMPTY = """
DO $$
DECLARE name text; holds boolean;
BEGIN
  SET CONSTRAINTS ALL DEFERRED;
  FOREACH name IN ARRAY '{%s}'::text[] LOOP
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM %%I)', name) INTO holds;
    IF holds THEN EXECUTE format('DELETE FROM %%I', name); END IF;
  END LOOP;
END $$
"""


def empty_database(case: Any = None) -> None:
    """Delete every row that a test may have written.

    A report that arrives after its test's end holds rows in its own order, so a deadlock is possible. PostgreSQL
    ends one of the two transactions; if it is this one, it is repeated.
    """
    tables = [name for name in connection.introspection.table_names() if name not in KEPT]
    for left in (2, 1, 0):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(_EMPTY % ",".join(tables))
            return
        except OperationalError as error:
            if not left or not isinstance(error.__cause__, DeadlockDetected):
                raise


def use_instead_of_flush() -> None:
    """Clean up committing tests this way from now on."""
    TransactionTestCase._fixture_teardown = empty_database  # type: ignore[method-assign]


def reconnect() -> None:
    """Use new connections with the current settings from now on."""
    connections.close_all()
    connection.close_pool()


@contextmanager
def durable_commits() -> Iterator[None]:
    """Make commits of this process survive a crash of the server, which tests otherwise do without."""
    options = connection.settings_dict["OPTIONS"]
    before = options.pop("options", None)
    reconnect()
    try:
        yield
    finally:
        if before is not None:
            options["options"] = before
        reconnect()


def crash_server() -> None:
    """Crash the embedded PostgreSQL; return when it is gone. It recovers from its log when it starts again."""
    pid = int((settings.DATA_DIR / "postgres" / "postmaster.pid").read_text().split()[0])
    server = psutil.Process(pid)
    os.kill(pid, signal.SIGQUIT)  # no goodbye and no checkpoint
    psutil.wait_procs([server], timeout=PATIENCE)
    assert not server.is_running()


def restart_server() -> None:
    """Start the embedded PostgreSQL after `crash_server`.

    The pool stays and replaces its broken connections: a request that waits for a pool that was closed meanwhile
    would wait for its whole time limit.
    """
    assert embedded_servers.restart_postgres_if_dead(settings.DATA_DIR)
    connections.close_all()


def note_statements(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Params]]:
    """Return the prepared statements that this process runs from now on, also those that wait, with parameters."""
    noted: list[tuple[str, Params]] = []
    dump = PreparedStatements.dump

    def note(statements: PreparedStatements, sql: str, params: Any) -> Any:
        noted.append((sql, params))
        return dump(statements, sql, params)

    monkeypatch.setattr(PreparedStatements, "dump", note)
    return noted


def read_only_error() -> InternalError:
    """Return the error of a statement that writes, on a server that has become a standby."""
    error = InternalError("cannot execute INSERT in a read-only transaction")
    error.__cause__ = ReadOnlySqlTransaction()
    return error
