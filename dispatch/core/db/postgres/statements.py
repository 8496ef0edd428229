"""Run prepared statements on a connection of the driver, without its cursor.

For each statement, a cursor parses the text, chooses the name, and looks up how to load each column. Here this is
done once for each connection. The driver still adapts the parameters, waits and loads the rows.
"""

from __future__ import annotations

import functools
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import abc, generators
from psycopg._preparing import Prepare
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGresult

# The statement that was used least recently is deallocated when a connection has more than this.
MAX_PREPARED = 500
# Django disables preparing by default. With a threshold that is never reached, each use of a cursor decides.
_ONLY_ON_DEMAND = 2**31 - 1
_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s|.?)", re.DOTALL)
_ATTRIBUTE = "_dispatch_statements"


class Text(NamedTuple):
    """The text of a statement as PostgreSQL reads it, and the names of its parameters, if they are named."""

    sql: bytes
    names: tuple[str, ...] | None
    size: int

    def values(self, params: Mapping[str, Any] | Sequence[Any]) -> Sequence[Any]:
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


class Statements:
    """The prepared statements of one connection.

    They survive a rollback. The driver would then deallocate its own, and all others with them: it has none.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw
        self._dumps = Transformer(raw)
        self._prepared: OrderedDict[_Key, _Prepared] = OrderedDict()
        self._in_pipeline: dict[_Key, _Prepared] = {}  # sent, and prepared unless the pipeline fails
        self._made = 0
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

    def run(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> Result:
        """Run one statement and return its result. Raises psycopg errors. Not for a pipeline."""
        raw = self._raw
        text = parsed(sql)
        with raw.lock:
            values = self._dumps.dump_sequence(text.values(params), _automatic(text.size))
            statement = self._prepare(text.sql, self._dumps.types or ())
            raw.pgconn.send_query_prepared(
                statement.name, values, param_formats=self._dumps.formats, result_format=Format.BINARY
            )
            result = wait_for_result(raw)
            if result.status != ExecStatus.TUPLES_OK:
                return Result(result.command_tuples or 0, None)
            return Result(result.ntuples, self._rows(statement, result))

    def _rows(self, statement: _Prepared, result: PGresult) -> list[tuple[Any, ...]]:
        loads = statement.loads
        if loads is None:
            loads = statement.loads = Transformer(self._raw)
            loads.set_pgresult(result)
        else:
            loads.set_pgresult(result, set_loaders=False)
        rows = loads.load_rows(0, result.ntuples, tuple)
        loads.set_pgresult(None, set_loaders=False)  # so that a large result is not kept
        return rows

    def _prepare(self, text: bytes, types: tuple[int, ...]) -> _Prepared:
        key = text, types
        if found := self._prepared.get(key):
            self._prepared.move_to_end(key)
            return found
        while len(self._prepared) >= MAX_PREPARED:
            _, oldest = self._prepared.popitem(last=False)
            self._raw.pgconn.send_query(b"DEALLOCATE " + oldest.name)
            wait_for_result(self._raw)
        made = self._new()
        self._raw.pgconn.send_prepare(made.name, text, param_types=types)
        wait_for_result(self._raw)
        self._prepared[key] = made
        return made

    def _new(self) -> _Prepared:
        self._made += 1  # a name is never used again, so it does not matter whether preparing it failed
        return _Prepared(b"dispatch_%d" % self._made)

    def name_in_pipeline(self, text: bytes, types: tuple[int, ...]) -> tuple[bytes, bool]:
        """Return the name of a statement in a pipeline, and whether the pipeline has yet to prepare it."""
        key = text, types
        if found := self._prepared.get(key) or self._in_pipeline.get(key):
            return found.name, False
        made = self._in_pipeline[key] = self._new()
        return made.name, True

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Open a pipeline of the driver. What it prepares is kept, unless it fails."""
        try:
            with self._raw.pipeline():
                yield
        except BaseException:
            self._in_pipeline = {}
            raise
        if self._raw.pgconn.pipeline_status == PipelineStatus.OFF:  # else it was inside another
            self._prepared.update(self._in_pipeline)
            self._in_pipeline = {}


class PipelineCursor(psycopg.Cursor[Any]):
    """A cursor for pipelines, whose statements are prepared like all others of its connection."""

    def _get_prepared(self, pgq: Any, prepare: bool | None = None) -> tuple[Prepare, bytes]:
        name, is_new = Statements.of(self.connection).name_in_pipeline(pgq.query, pgq.types or ())
        if is_new:
            self._send_prepare(name, pgq)
        return Prepare.YES, name


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
