"""Extend Django's PostgreSQL backend with this process's session limits and a pool that fails fast.

If the pool provides no connection in time, PostgreSQL is unavailable or all connections are stuck. Requests then
fail immediately for PAUSE_S instead of waiting one after another; afterwards one request probes. Connections to
several hosts are watched by `former_primary`.

The pool provides the connection that was returned last, and closes the one that was not needed for longest. In
turns, each of its connections would have to prepare and plan each statement.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from django.db.backends.utils import debug_transaction
from django.db.utils import OperationalError
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.db import pooler, session_limits
from dispatch.core.db.commit_hooks import joined
from dispatch.core.db.postgres import former_primary
from dispatch.core.db.postgres.prepared_statements import run_script
from dispatch.core.db.postgres.statements import Statements

PAUSE_S = 3.0
# How long a pool repeats one attempt to connect, with delays that double. The next request starts another attempt.
# With psycopg's five minutes, a pool would not connect for up to two minutes after an outage of two minutes.
RECONNECT_S = 4.0

breaker = CircuitBreaker("postgres", PAUSE_S)
_pool_changes = threading.Lock()


class _NewestFirst(deque[psycopg.Connection[Any]]):
    """The free connections of a pool, which takes one from the left and returns it by `append`."""

    def append(self, connection: psycopg.Connection[Any], /) -> None:
        """Put the connection first."""
        self.appendleft(connection)


def _close_unused(pool: Any) -> None:
    """Close the connection that was not needed for longest, if one was free all the time since the last call.

    The pool's own method closes the first, which is here the one that has prepared the most statements.
    """
    unused = None
    with pool._lock:
        was_free, pool._nconns_min = pool._nconns_min, len(pool._pool)
        if pool._nconns > pool.min_size and was_free > 0 and pool._pool:
            unused = pool._pool.pop()
            pool._nconns -= 1
            pool._nconns_min -= 1
    if unused is not None:
        pool._close_connection(unused)


def check_unless_quiet(connection: Any) -> None:
    """Check a connection of the pool with a statement, but only if its socket has something to read.

    A server that ended an idle connection has sent its reason and the end of the stream. So a check of a quiet
    connection would cost each request a round trip and find nothing. Raises psycopg.Error if the connection is
    broken.
    """
    if not is_quiet(connection):
        ConnectionPool.check_connection(connection)


def is_quiet(connection: Any) -> bool:
    """Return whether the connection is open and its socket has nothing to read."""
    if connection.closed:
        return False
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return not poller.poll(0)


class _Cursor(base.Cursor):
    """A cursor of the ORM. Its statements follow those that wait, also those that came after it was opened."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Send what waits, then the statement."""
        self._send_waiting()
        return super().execute(*args, **kwargs)  # type: ignore[misc]  # not in the stubs

    def executemany(self, *args: Any, **kwargs: Any) -> Any:
        """Send what waits, then the statements."""
        self._send_waiting()
        return super().executemany(*args, **kwargs)  # type: ignore[misc]  # not in the stubs

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        """Send what waits, then COPY."""
        self._send_waiting()
        return super().copy(*args, **kwargs)  # type: ignore[misc]  # not in the stubs

    def _send_waiting(self) -> None:
        raw: psycopg.Connection[Any] = self.connection  # type: ignore[attr-defined]
        Statements.of(raw).flush()


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's PostgreSQL connection with session limits and a circuit breaker in front of the pool."""

    health_check_done: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_locally: dict[str, str] = {}  # by the running transaction, until a savepoint is rolled back

    @property
    def pool(self) -> Any:
        """Return the pool, or None. With CONN_HEALTH_CHECKS, it checks connections by `check_unless_quiet`."""
        pool = super().pool
        if pool is None:
            return None
        with _pool_changes:  # it is opened only after it was returned here, so it has no connections yet
            if not isinstance(pool._pool, _NewestFirst):
                pool._pool = _NewestFirst(pool._pool)
                pool._shrink_pool = partial(_close_unused, pool)
        pool.reconnect_timeout = RECONNECT_S
        if pool._check is not None:
            pool._check = check_unless_quiet
        return pool

    def close_if_health_check_failed(self) -> None:
        """Check a kept connection by a statement, but only if its socket has something to read."""
        if self.connection is not None and not self.health_check_done and is_quiet(self.connection):
            self.health_check_done = True
        super().close_if_health_check_failed()

    def set_local(self, **parameters: str) -> None:
        """Set parameters of the session (SQL values) until the transaction ends.

        A transaction that has not begun in PostgreSQL begins with them, in one round trip. A value that the
        transaction has already set here is not sent again.
        """
        changed = {name: value for name, value in parameters.items() if self._set_locally.get(name) != value}
        if not changed:
            return
        self.ensure_connection()
        raw, statements = self.connection, Statements.of(self.connection)
        commands = [f"SET LOCAL {name} = {value}" for name, value in changed.items()]
        if statements.pipeline is not None:
            for command in commands:
                statements.pipeline.add_text(command)
        elif not raw.autocommit:
            self.begin().waiting += commands
        else:
            with self.wrap_database_errors:
                run_script(raw, "; ".join(commands))
        if self.in_atomic_block:
            self._set_locally |= changed

    def begin(self) -> Statements:
        """Return the connection's statements, of which the next begins the transaction, unless it has begun."""
        raw, statements = self.connection, Statements.of(self.connection)
        pipeline = statements.pipeline
        if (
            not raw.autocommit
            and not statements.waiting
            and (pipeline is None or pipeline.is_empty)  # a pipeline begins its transaction itself
            and raw.pgconn.transaction_status == TransactionStatus.IDLE
        ):
            statements.begin()
        return statements

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a cursor for statements of the ORM. One of the server's begins with what waits."""
        if name and self.connection is not None:
            with self.wrap_database_errors:
                Statements.of(self.connection).flush()
        return super().create_cursor(name)

    def _commit(self) -> None:
        if self.connection is not None:
            with debug_transaction(self, "COMMIT"), self.wrap_database_errors:
                Statements.of(self.connection).commit()

    def _rollback(self) -> None:
        self._forget_statements()
        super()._rollback()  # type: ignore[misc]

    # Savepoints without a cursor, which costs more than they.

    def _savepoint(self, sid: str) -> None:
        self.ensure_connection()
        with self.wrap_database_errors:
            self.begin().savepoint(self.ops.savepoint_create_sql(sid))

    def _savepoint_commit(self, sid: str) -> None:
        with self.wrap_database_errors:
            self.begin().release_savepoint(self.ops.savepoint_create_sql(sid), self.ops.savepoint_commit_sql(sid))

    def _savepoint_rollback(self, sid: str) -> None:
        self._set_locally = {}
        with self.wrap_database_errors:
            self.begin().roll_back_to_savepoint(
                self.ops.savepoint_create_sql(sid), self.ops.savepoint_rollback_sql(sid)
            )

    def _close(self) -> None:
        self._forget_statements()  # a pool may hand out the connection again
        super()._close()  # type: ignore[misc]

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> None:
        """Run `func` after the commit. If it is `robust`, its exceptions are logged.

        Django logs them under the name of a function, which a partial or an object does not have.
        """
        if robust and not hasattr(func, "__qualname__"):
            func.__qualname__ = repr(func)
        super().on_commit(func, robust)

    def run_and_clear_commit_hooks(self) -> None:
        """Run the hooks of the transaction, the joined ones once."""
        self.run_on_commit = joined(self.run_on_commit)
        super().run_and_clear_commit_hooks()

    def _forget_statements(self) -> None:
        if self.connection is not None:
            Statements.of(self.connection).forget()

    def _set_autocommit(self, autocommit: bool) -> None:
        self._set_locally = {}  # a transaction begins or has ended
        if self.connection is not None:
            Statements.of(self.connection).forget_waiting()
        super()._set_autocommit(autocommit)  # type: ignore[misc]

    def get_connection_params(self) -> dict[str, Any]:
        """Return Django's parameters with the session limits. Explicit OPTIONS take precedence."""
        parameters: dict[str, Any] = super().get_connection_params()
        if options := f"{session_limits.options()} {parameters.get('options', '')}".strip():
            parameters["options"] = options
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return a new connection, or a connection of the pool.

        Raises OperationalError, immediately if the pool has just failed.
        """
        if not self.pool:
            return self.watched(super().get_new_connection(conn_params))
        if not breaker.admit():
            raise OperationalError("PostgreSQL provided no connection a moment ago.")
        try:
            connection = super().get_new_connection(conn_params)
        except PoolTimeout as error:
            breaker.record_failure(error)
            raise
        except BaseException:
            breaker.release_probe()
            raise
        breaker.record_success()
        return self.watched(connection)

    def watched(self, connection: Any) -> Any:
        """Return the connection, which is cut if another of several hosts becomes the primary while it hangs."""
        if connection.cursor_factory is base.Cursor:
            connection.cursor_factory = _Cursor
        if self._follows_the_primary():
            former_primary.watch.add(connection, self._find_primary)
        return connection

    def _follows_the_primary(self) -> bool:
        options = self.settings_dict["OPTIONS"]
        has_several_hosts = "," in str(self.settings_dict["HOST"] or options.get("host", ""))
        return has_several_hosts and options.get("target_session_attrs") in ("read-write", "primary")

    def _find_primary(self, only: former_primary.Address | None = None) -> former_primary.Address:
        """Return the host and port that accept writes now, asking all or `only` one. Raises psycopg.Error."""
        parameters = pooler.parameters(self.alias)
        if only is not None:
            parameters |= {"host": only[0], "port": only[1]}
        with psycopg.connect(**parameters) as connection:
            return connection.info.host, connection.info.port
