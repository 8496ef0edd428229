"""Prepare statements once for each connection of the driver, and run them without its cursors.

For each statement, a cursor parses the text, chooses the name, and looks up how to load each column. Here this is
done once for each connection. The driver still adapts the parameters, waits and loads the rows.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psycopg
from psycopg import abc, generators
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from dispatch.core.db.errors import is_stale_plan

# The statement that was used least recently is deallocated when a connection has more than this.
MAX_PREPARED = 500
# Django disables preparing by default. With a threshold that is never reached, each use of a cursor decides.
_ONLY_ON_DEMAND = 2**31 - 1
_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s|.?)", re.DOTALL)

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


class Prepared:
    """A statement that this connection has prepared, for parameters of certain types."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.loads: abc.Transformer | None = None  # knows how to load the columns, after the first result


Key = tuple[bytes, tuple[int, ...]]


class Dumped(NamedTuple):
    """A statement as it is sent: its text, and its parameters with their types and formats."""

    text: bytes
    values: Sequence[abc.Buffer | None]
    types: tuple[int, ...]
    formats: Any


class PreparedStatements:
    """The statements that one connection has prepared.

    They survive a rollback. The driver would then deallocate its own, and all others with them: it has none. After
    a migration that changed the type of a column, one of them fails, and all are prepared again.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        raw.prepare_threshold = _ONLY_ON_DEMAND
        raw.adapters.register_loader("jsonb", _JsonbTextLoader)
        self._raw = raw
        self._dumps = Transformer(raw)
        self._prepared: OrderedDict[Key, Prepared] = OrderedDict()
        self._made = 0
        self._renewals = 0  # how often a migration has made them useless

    def run(self, sql: str, params: Params) -> Result:
        """Run one statement and return its result. Raises psycopg errors. Not for a pipeline."""
        raw = self._raw
        with raw.lock:
            text, values, types, formats = self.dump(sql, params)
            statement = self._find(text, types) or self._prepare(text, types)
            raw.pgconn.send_query_prepared(
                statement.name, values, param_formats=formats, result_format=Format.BINARY
            )
            try:
                result = wait_for_result(raw)
            except psycopg.Error as error:
                self.check_stale(error)
                raise
            return self.load(statement, result)

    def check_stale(self, error: psycopg.Error) -> None:
        """Prepare all statements again if the error of one is that the type of a column has changed.

        The others may return the column too. PostgreSQL would refuse them for as long as the session lives.
        """
        if is_stale_plan(error):
            self._prepared.clear()
            self._renewals += 1

    def load(self, statement: Prepared, result: PGresult) -> Result:
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

    def dump(self, sql: str, params: Params) -> Dumped:
        """Return the statement as it is sent. Raises psycopg errors."""
        text, dumps = parsed(sql), self._dumps
        values = dumps.dump_sequence(text.values(params), _automatic(text.size))
        return Dumped(text.sql, values, dumps.types or (), dumps.formats)

    def commands(self, dumped: Dumped, made: dict[Key, Prepared]) -> tuple[list[Callable[[], None]], Prepared]:
        """Return what sends a statement in a pipeline, and the statement.

        `made` are those that the pipeline prepares. It is extended by this one, unless it is prepared already.
        """
        pgconn = self._raw.pgconn
        text, values, types, formats = dumped
        commands: list[Callable[[], None]] = []
        if (statement := self._find(text, types) or made.get((text, types))) is None:
            statement = made[text, types] = self._new()
            prepare = partial(pgconn.send_prepare, statement.name, self._distinct(text), param_types=types)
            commands.append(prepare)
        send = partial(
            pgconn.send_query_prepared,
            statement.name,
            values,
            param_formats=formats,
            result_format=Format.BINARY,
        )
        return [*commands, send], statement

    def keep(self, made: dict[Key, Prepared]) -> None:
        """Keep the statements that a pipeline has prepared."""
        for key, statement in made.items():
            self._make_room()
            self._prepared[key] = statement

    def _find(self, text: bytes, types: tuple[int, ...]) -> Prepared | None:
        key = text, types
        if found := self._prepared.get(key):
            self._prepared.move_to_end(key)
        return found

    def _prepare(self, text: bytes, types: tuple[int, ...]) -> Prepared:
        self._make_room()
        made = self._new()
        self._raw.pgconn.send_prepare(made.name, self._distinct(text), param_types=types)
        wait_for_result(self._raw)
        self._prepared[text, types] = made
        return made

    def _make_room(self) -> None:
        while len(self._prepared) >= MAX_PREPARED:
            _, oldest = self._prepared.popitem(last=False)
            self._raw.pgconn.send_query(b"DEALLOCATE " + oldest.name)
            wait_for_result(self._raw)

    def _distinct(self, text: bytes) -> bytes:
        """Return a text that a pooler does not take for that of the refused statement."""
        return b"%b\n-- %d" % (text, self._renewals) if self._renewals else text

    def _new(self) -> Prepared:
        self._made += 1  # a name is never used again, so it does not matter whether preparing it failed
        return Prepared(b"dispatch_%d" % self._made)


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
