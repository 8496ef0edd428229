"""Run prepared statements on a connection of the driver, without its cursors and pipelines.

For each statement, a cursor parses the text, chooses the name, and looks up how to load each column. Here this is
done once for each connection. The driver still adapts the parameters, waits and loads the rows. Its pipelines cost
more than the round trips that they save; here a pipeline is sent with one system call, when its first result is
needed.

The beginning of a transaction, a savepoint, and changes whose result is not needed yet wait for the next
statement, and are sent with it in one round trip. The order of all statements is kept.
"""

from __future__ import annotations

import functools
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg import abc, generators
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

# The statement that was used least recently is deallocated when a connection has more than this.
MAX_PREPARED = 500
# Django disables preparing by default. With a threshold that is never reached, each use of a cursor decides.
_ONLY_ON_DEMAND = 2**31 - 1
_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s|.?)", re.DOTALL)
_ATTRIBUTE = "_dispatch_statements"

Params = Mapping[str, Any] | Sequence[Any]


class Text(NamedTuple):
    """The text of a statement as PostgreSQL reads it, and the names of its parameters, if they are named."""

    sql: bytes
    names: tuple[str, ...] | None
    size: int

    def values(self, params: Params) -> Sequence[Any]:
        """Return the parameters in their order. Raises psycopg.ProgrammingError if one is missing."""
        if isinstance(params, Mapping):
            try:
                return [params[name] for name in self.names or ()]
            except KeyError as error:
                raise psycopg.ProgrammingError(f"The statement has no value for {error}.") from error
        if len(params) != self.size or self.names:
            raise psycopg.ProgrammingError(f"The statement has {self.size} placeholders, not {len(params)}.")
        return params


class _JsonbTextLoader(Loader):
    """Load jsonb as its text, as Django's loader for results in text form does: fields decode it themselves."""

    format = Format.BINARY

    def load(self, data: abc.Buffer) -> str:
        return str(data[1:], "utf-8")  # the first byte is the version of the format


class Result:
    """The result of a statement, read like that of a cursor. `rows` is None if it returns none by its kind."""

    def __init__(self, rowcount: int, rows: list[tuple[Any, ...]] | None) -> None:
        self.rowcount, self._rows = rowcount, rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows. Raises psycopg.ProgrammingError if there cannot be any."""
        if self._rows is None:
            raise psycopg.ProgrammingError("The statement does not return rows.")
        return self._rows


class _Prepared:
    """A statement that this connection has prepared, for parameters of certain types."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.loads: abc.Transformer | None = None  # knows how to load the columns, after the first result


_Key = tuple[bytes, tuple[int, ...]]


class _Dumped(NamedTuple):
    """A statement as it is sent: its text, and its parameters with their types and formats."""

    text: bytes
    values: Sequence[abc.Buffer | None]
    types: tuple[int, ...]
    formats: Any


class Change(NamedTuple):
    """A statement that waits for the next one.

    `then` gets its result, and raises nothing. `refusal` is the text of the error if the statement divides by
    zero, as one does that counts the rows it needs.
    """

    statement: _Dumped
    then: Callable[[Result], None] | None
    refusal: str


class Statements:
    """The prepared statements of one connection, and its open pipeline.

    They survive a rollback. The driver would then deallocate its own, and all others with them: it has none.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self._dumps = Transformer(raw)
        self._prepared: OrderedDict[_Key, _Prepared] = OrderedDict()
        self._made = 0
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
            raw.prepare_threshold = _ONLY_ON_DEMAND
            raw.adapters.register_loader("jsonb", _JsonbTextLoader)
            found = cls(raw)
            setattr(raw, _ATTRIBUTE, found)
        return found

    def run(self, sql: str, params: Params) -> Result:
        """Run one statement and return its result. Raises psycopg errors. Not for a pipeline."""
        raw = self._raw
        if self.waiting:
            pipeline = Pipeline(self, raw)
            pending = pipeline.add(sql, params)
            pipeline.flush()
            return pending.read()
        with raw.lock:
            text, values, types, formats = self.dump(sql, params)
            statement = self._find(text, types) or self._prepare(text, types)
            raw.pgconn.send_query_prepared(
                statement.name, values, param_formats=formats, result_format=Format.BINARY
            )
            return self.load(statement, wait_for_result(raw))

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

    def load(self, statement: _Prepared, result: PGresult) -> Result:
        """Return the result of a statement as Python values."""
        if result.status != ExecStatus.TUPLES_OK:
            return Result(result.command_tuples or 0, None)
        loads = statement.loads
        if loads is None:
            loads = statement.loads = Transformer(self._raw)
            loads.set_pgresult(result)
        else:
            loads.set_pgresult(result, set_loaders=False)
        rows = loads.load_rows(0, result.ntuples, tuple)
        loads.set_pgresult(None, set_loaders=False)  # so that a large result is not kept
        return Result(len(rows), rows)

    def dump(self, sql: str, params: Params) -> _Dumped:
        """Return the statement as it is sent. Raises psycopg errors."""
        text, dumps = parsed(sql), self._dumps
        values = dumps.dump_sequence(text.values(params), _automatic(text.size))
        return _Dumped(text.sql, values, dumps.types or (), dumps.formats)

    def commands(self, dumped: _Dumped, made: dict[_Key, _Prepared]) -> tuple[list[Callable[[], None]], _Prepared]:
        """Return what sends a statement in a pipeline, and the statement.

        `made` are those that the pipeline prepares. It is extended by this one, unless it is prepared already.
        """
        pgconn = self._raw.pgconn
        text, values, types, formats = dumped
        commands: list[Callable[[], None]] = []
        if (statement := self._find(text, types) or made.get((text, types))) is None:
            statement = made[text, types] = self._new()
            commands.append(partial(pgconn.send_prepare, statement.name, text, param_types=types))
        send = partial(
            pgconn.send_query_prepared,
            statement.name,
            values,
            param_formats=formats,
            result_format=Format.BINARY,
        )
        return [*commands, send], statement

    def keep(self, made: dict[_Key, _Prepared]) -> None:
        """Keep the statements that a pipeline has prepared."""
        for key, statement in made.items():
            self._make_room()
            self._prepared[key] = statement

    def _find(self, text: bytes, types: tuple[int, ...]) -> _Prepared | None:
        key = text, types
        if found := self._prepared.get(key):
            self._prepared.move_to_end(key)
        return found

    def _prepare(self, text: bytes, types: tuple[int, ...]) -> _Prepared:
        self._make_room()
        made = self._new()
        self._raw.pgconn.send_prepare(made.name, text, param_types=types)
        wait_for_result(self._raw)
        self._prepared[text, types] = made
        return made

    def _make_room(self) -> None:
        while len(self._prepared) >= MAX_PREPARED:
            _, oldest = self._prepared.popitem(last=False)
            self._raw.pgconn.send_query(b"DEALLOCATE " + oldest.name)
            wait_for_result(self._raw)

    def _new(self) -> _Prepared:
        self._made += 1  # a name is never used again, so it does not matter whether preparing it failed
        return _Prepared(b"dispatch_%d" % self._made)


class Pending:
    """The result of a statement in a pipeline, which is sent when this is read."""

    def __init__(self, pipeline: Pipeline, statement: _Prepared) -> None:
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
        self._statements, self._raw = statements, raw
        self._commands: list[Callable[[], None]] = []
        self._awaited: list[Pending | None] = []  # for each command
        self._changes: list[tuple[Change, Pending]] = []
        self._made: dict[_Key, _Prepared] = {}
        self._begins = False  # what was added begins a transaction
        self._is_transaction = False
        # Of what was not sent: what waited before, and whether the pipeline has added statements.
        self._waited: list[str | Change] = []
        self._has_own = False
        self.left_waiting: list[Change] = []  # for a later statement, or the commit

    def add(self, sql: str, params: Params) -> Pending:
        """Add a prepared statement and return its result, which is read later."""
        dumped = self._statements.dump(sql, params)
        self.add_waiting()
        self._has_own = True
        return self._add(dumped)

    def _add(self, dumped: _Dumped) -> Pending:
        commands, statement = self._statements.commands(dumped, self._made)
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
                if isinstance(error, psycopg.errors.DivisionByZero):
                    refusal = next((change.refusal for change, of in changes if of is pending), "")
                    error = psycopg.DatabaseError(refusal) if refusal else error
                raise error
            if pending is not None:
                pending.result = self._statements.load(pending.statement, result)
        self._statements.keep(made)
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


def run_script(raw: psycopg.Connection[Any], script: str) -> None:
    """Run statements without results in one round trip, also where the driver would first begin a transaction.

    Raises psycopg errors. Not for a pipeline.
    """
    with raw.lock:
        raw.pgconn.send_query(script.encode())
        wait_for_result(raw)


def wait_for_result(raw: psycopg.Connection[Any]) -> PGresult:
    """Wait for what was sent and return its last result. Raises psycopg errors."""
    results = raw.wait(generators.execute(raw.pgconn))
    for result in results:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise psycopg.errors.error_from_result(result, encoding=raw.info.encoding)
    if not results:
        raise psycopg.InternalError("PostgreSQL sent no result.")
    return results[-1]


@functools.lru_cache(maxsize=4 * MAX_PREPARED)
def parsed(sql: str) -> Text:
    """Return a statement with the placeholders of PostgreSQL: $1 instead of %s or %(name)s, and % instead of %%.

    Raises psycopg.ProgrammingError for any other placeholder, and if some are named and some are not.
    """
    names: dict[str, int] = {}
    count = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal count
        if match[0] == "%%":
            return "%"
        if match[1]:
            return f"${names.setdefault(match[1], len(names) + 1)}"
        if match[0] != "%s":
            raise psycopg.ProgrammingError(f"A statement may have %s, %(name)s and %%, but not {match[0]!r}.")
        count += 1
        return f"${count}"

    text = _PLACEHOLDER.sub(replaced, sql)
    if names and count:
        raise psycopg.ProgrammingError("A statement's parameters are either named or positional.")
    return Text(text.encode(), tuple(names) or None, len(names) or count)


@functools.cache
def _automatic(count: int) -> list[PyFormat]:
    return [PyFormat.AUTO] * count
