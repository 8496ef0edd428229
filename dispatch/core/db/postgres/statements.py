"""Run the prepared statements of a connection in few round trips.

The beginning of a transaction, a savepoint, and changes whose result is not needed yet wait for the next
statement, and are sent with it in one round trip. The order of all statements is kept.

The driver's pipelines cost more than the round trips that they save. Here a pipeline is sent with one system call,
when its first result is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg import generators
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from dispatch.core.db.postgres.prepared_statements import (
    Dumped,
    Key,
    Params,
    Prepared,
    PreparedStatements,
    Result,
    run_script,
)

_ATTRIBUTE = "_dispatch_statements"


class Change(NamedTuple):
    """A statement that waits for the next one.

    `then` gets its result, and raises nothing. `refusal` is the text of the error if the statement divides by
    zero, as one does that counts the rows it needs.
    """

    statement: Dumped
    then: Callable[[Result], None] | None
    refusal: str


class Statements:
    """The statements of one connection: what waits, and its open pipeline."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self.prepared = PreparedStatements(raw)
        self.pipeline: Pipeline | None = None
        # What is sent with the next statement: the beginning of a transaction, savepoints, and changes.
        self.waiting: list[str | Change] = []
        # Why the transaction cannot be committed, although the code inside it may have caught the error.
        self._failure: psycopg.Error | None = None
        self.planned_at = time.monotonic()
        self.plans_s: float | None = None  # how long the plans are kept, if not as long as usual

    @classmethod
    def of(cls, raw: psycopg.Connection[Any]) -> Statements:
        """Return those of this connection, which keeps them as long as it exists."""
        found: Statements | None = getattr(raw, _ATTRIBUTE, None)
        if found is None:
            found = cls(raw)
            setattr(raw, _ATTRIBUTE, found)
        return found

    def run(self, sql: str, params: Params) -> Result:
        """Run one statement and return its result. Raises psycopg errors. Not for a pipeline."""
        if not self.waiting:
            return self.prepared.run(sql, params)
        pipeline = Pipeline(self, self._raw)
        pending = pipeline.add(sql, params)
        pipeline.flush()
        return pending.read()

    @property
    def has_changes(self) -> bool:
        """Return whether changes wait."""
        return any(isinstance(text, Change) for text in self.waiting)

    def begin(self) -> None:
        """Begin a transaction with its next statement. Nothing waits yet."""
        self.waiting = [begin_command(self._raw)]

    def change_later(self, change: Change) -> None:
        """Run a change with the next statement of the transaction, which has begun or begins with what waits."""
        self.waiting.append(change)
        if self.pipeline is not None:
            self.pipeline.left_waiting.append(change)

    def flush(self, *commands: str) -> None:
        """Send all that waits, and these commands. Raises psycopg errors."""
        texts = [text for text in self.waiting if isinstance(text, str)]
        if self.pipeline is None and len(texts) == len(self.waiting):
            self.waiting = []
            if texts or commands:
                run_script(self._raw, "; ".join([*texts, *commands]))
            return
        pipeline = self.pipeline or Pipeline(self, self._raw)
        pipeline.add_waiting()
        for command in commands:
            pipeline.add_text(command)
        if pipeline is self.pipeline:
            pipeline.flush()
        else:
            pipeline.end()

    def savepoint(self, create: str) -> None:
        """Make a savepoint: with the next statement, unless changes wait, whose errors do not belong inside it.

        Raises psycopg errors, also that of an earlier statement, like `release_savepoint`.
        """
        self._check_failure()
        if self.pipeline is None and not self.has_changes:
            self.waiting.append(create)
            return
        try:
            self.flush(create)
        except psycopg.Error as error:
            self._failure = error
            raise

    def release_savepoint(self, create: str, release: str) -> None:
        """Release the savepoint that `create` made: with the changes that wait, or with the next statement.

        Raises psycopg errors, also that of an earlier statement that was caught without a savepoint around it.
        """
        self._check_failure()
        if self.pipeline is not None or self.has_changes:
            self.flush(release)
        elif create in self.waiting:
            self.waiting.remove(create)  # nothing ran inside
        else:
            self.waiting.append(release)

    def roll_back_to_savepoint(self, create: str, roll_back: str) -> None:
        """Forget all that waits since the savepoint that `create` made, and undo what was sent since."""
        if self.pipeline is not None:
            self.pipeline.forget()
        self._failure = None
        if create in self.waiting:
            del self.waiting[self.waiting.index(create) + 1 :]
        else:
            self.waiting = []
            self.flush(roll_back)

    def commit(self) -> None:
        """Commit the transaction with the changes that wait.

        Raises psycopg errors, also that of an earlier statement that was caught without a savepoint around it:
        PostgreSQL would roll the transaction back, and report no error.
        """
        self._check_failure()
        if self.pipeline is not None:
            self.pipeline.flush()
        if self.has_changes:
            self.flush("COMMIT")  # not run after an error
            return
        self.waiting = []  # a transaction without statements
        if self._raw.pgconn.transaction_status != TransactionStatus.IDLE:
            run_script(self._raw, "COMMIT")

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._raw.pgconn.transaction_status == TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction(
                "A statement of the transaction has failed, and nothing rolled it back."
            )

    def lose_statements(self) -> None:
        """Refuse to commit the transaction, because statements of it were not sent."""
        if not self._raw.autocommit and self._failure is None:
            self._failure = psycopg.errors.InFailedSqlTransaction(
                "An exception has left a pipeline of the transaction, whose statements were not sent."
            )

    def forget_waiting(self) -> None:
        """Forget what waits, because a transaction begins or has ended."""
        self.waiting, self._failure = [], None

    def forget(self) -> None:
        """Forget what waits and what a pipeline has not sent."""
        self.forget_waiting()
        if self.pipeline is not None:
            self.pipeline.forget()

    @contextmanager
    def open_pipeline(self) -> Iterator[None]:
        """Collect the statements that run inside until a result is needed. Do nothing inside another pipeline."""
        if self.pipeline is not None:
            yield
            return
        pipeline = self.pipeline = Pipeline(self, self._raw)
        try:
            yield
            pipeline.end()
        except BaseException:
            pipeline.abandon()
            raise
        finally:
            self.pipeline = None


class Pending:
    """The result of a statement in a pipeline, which is sent when this is read."""

    def __init__(self, pipeline: Pipeline, statement: Prepared) -> None:
        self._pipeline, self.statement = pipeline, statement
        self.result: Result | None = None

    @property
    def rowcount(self) -> int:
        """Return how many rows the statement returned or affected."""
        return self.read().rowcount

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows. Raises psycopg.ProgrammingError if there cannot be any."""
        return self.read().fetchall()

    def read(self) -> Result:
        """Return the result, after sending what waits in the pipeline."""
        if self.result is None:
            self._pipeline.flush()
        if self.result is None:
            raise psycopg.ProgrammingError("The pipeline failed before it ran this statement.")
        return self.result


class Pipeline:
    """Statements that are sent together, in one round trip.

    Without an open transaction, a pipeline is one, even if it needs several round trips.
    """

    def __init__(self, statements: Statements, raw: psycopg.Connection[Any]) -> None:
        self._statements, self._prepared, self._raw = statements, statements.prepared, raw
        self._commands: list[Callable[[], None]] = []
        self._awaited: list[Pending | None] = []  # for each command
        self._changes: list[tuple[Change, Pending]] = []
        self._made: dict[Key, Prepared] = {}
        self._begins = False  # what was added begins a transaction
        self._is_transaction = False
        # Of what was not sent: what waited before, and whether the pipeline has added statements.
        self._waited: list[str | Change] = []
        self._has_own = False
        self.left_waiting: list[Change] = []  # for a later statement, or the commit

    def add(self, sql: str, params: Params) -> Pending:
        """Add a prepared statement and return its result, which is read later."""
        dumped = self._prepared.dump(sql, params)
        self.add_waiting()
        self._has_own = True
        return self._add(dumped)

    def _add(self, dumped: Dumped) -> Pending:
        commands, statement = self._prepared.commands(dumped, self._made)
        pending = Pending(self, statement)
        self._commands += commands
        self._awaited += [None] * (len(commands) - 1) + [pending]
        return pending

    def add_change(self, change: Change) -> None:
        """Add a change."""
        self.add_waiting()
        self._has_own = True
        self._changes.append((change, self._add(change.statement)))

    def add_waiting(self) -> None:
        """Add what waits for the next statement. The beginning of a transaction is first."""
        waiting, self._statements.waiting = self._statements.waiting, []
        self._waited += waiting
        for text in waiting:
            if text == begin_command(self._raw):
                self._begins = True
            if isinstance(text, str):
                self._add_text(text)
            else:
                self._changes.append((text, self._add(text.statement)))

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is to be sent."""
        return not self._commands

    def add_text(self, text: str, *, is_needed: bool = True) -> None:
        """Add a statement that is not prepared, and whose result does not matter.

        `is_needed`: the transaction is not complete without it.
        """
        self.add_waiting()
        self._has_own |= is_needed
        self._add_text(text)

    def _add_text(self, text: str) -> None:
        self._commands.append(partial(self._raw.pgconn.send_query_params, text.encode(), None))
        self._awaited.append(None)

    def flush(self) -> None:
        """Send what was added, and wait for all results. Raises the first psycopg error."""
        if self._commands:
            self._begin_transaction()
            self._send()

    def end(self) -> None:
        """Flush, and commit if the pipeline has begun a transaction."""
        if self._is_transaction:
            self.add_text("COMMIT")
        elif self._commands and not self._raw.autocommit:
            self._begin_transaction()
        if self._commands:
            self._send()
        self._is_transaction = False

    def forget(self) -> None:
        """Forget what was not sent."""
        self._commands, self._awaited, self._changes, self._made = [], [], [], {}
        self._waited, self._begins, self._has_own = [], False, False

    def abandon(self) -> None:
        """Forget what was not sent, and roll back if the pipeline has begun a transaction.

        What waited before the pipeline waits again. A transaction around it can only be rolled back if a statement
        of the pipeline was forgotten.
        """
        own = {id(change) for change in self.left_waiting}
        waiting = self._waited + self._statements.waiting
        self._statements.waiting = [text for text in waiting if id(text) not in own]
        is_complete = not self._has_own and len(self._statements.waiting) == len(waiting)
        self.forget()
        if self._is_transaction and self._raw.pgconn.status == ConnStatus.OK:
            run_script(self._raw, "ROLLBACK")
        elif not is_complete:
            self._statements.lose_statements()

    def _begin_transaction(self) -> None:
        raw = self._raw
        if raw.pgconn.transaction_status == TransactionStatus.IDLE and not self._begins:
            self._is_transaction = raw.autocommit
            begin = begin_command(raw).encode()
            self._commands.insert(0, partial(raw.pgconn.send_query_params, begin, None))
            self._awaited.insert(0, None)

    def _send(self) -> None:
        raw, pgconn = self._raw, self._raw.pgconn
        commands, awaited, changes, made = self._commands, self._awaited, self._changes, self._made
        self.forget()
        with raw.lock:
            pgconn.enter_pipeline_mode()
            try:
                for command in commands:
                    command()  # the driver would send each with a separate system call
                pgconn.pipeline_sync()
                results = raw.wait(_communicate(pgconn, len(commands) + 1))
            finally:
                _leave_pipeline_mode(raw)
        for pending, (result, *_) in zip(awaited, results, strict=False):
            if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                error = psycopg.errors.error_from_result(result, encoding=raw.info.encoding)
                self._prepared.check_stale(error)
                if isinstance(error, psycopg.errors.DivisionByZero):
                    refusal = next((change.refusal for change, of in changes if of is pending), "")
                    error = psycopg.DatabaseError(refusal) if refusal else error
                raise error
            if pending is not None:
                pending.result = self._prepared.load(pending.statement, result)
        self._prepared.keep(made)
        for change, pending in changes:
            if change.then is not None:
                change.then(pending.read())


def _communicate(pgconn: PGconn, count: int) -> Generator[Any, Any, list[list[PGresult]]]:
    """Send what was written, and wait for `count` results. The last one is that of the synchronization."""
    yield from generators.send(pgconn)
    results = []
    for _ in range(count):
        results.append((yield from generators.fetch_many(pgconn)))
    return results


def _leave_pipeline_mode(raw: psycopg.Connection[Any]) -> None:
    """Leave it, or close a connection that has not sent all results, because the wait was interrupted."""
    try:
        raw.pgconn.exit_pipeline_mode()
    except psycopg.Error:
        raw.close()


def begin_command(raw: psycopg.Connection[Any]) -> str:
    """Return the statement that begins a transaction of this connection."""
    level = raw.isolation_level
    return "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"
