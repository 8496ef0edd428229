"""Batch the work of many coroutines into few transactions.

Items that arrive while a batch runs form the next batch.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import structlog
from django.db import DatabaseError, close_old_connections, connection, connections

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S = 5.0
# Under load, a batch waits a moment for more items: a transaction costs about as much for thirty items as for
# three. A single item never waits.
BUSY = 4
LINGER_S = 0.004
_checked = threading.local()

T = TypeVar("T")
R = TypeVar("R")


class BatchAborted(RuntimeError):
    """A batch was ended by something that is no error of its items: the process or its event loop is stopping."""


class DatabaseThread:
    """Runs calls in one thread with dedicated database connections."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, call: Callable[[], R]) -> R:
        """Run `call` in the thread and return its result. On a database error, the connections are closed."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _with_fresh_connections, call)

    def start(self, call: Callable[[], object]) -> None:
        """Run `call` in the thread, after those before it, without waiting for it. Works from any thread."""
        self._pool.submit(_with_fresh_connections, call)

    def close(self) -> None:
        """Wait for running calls, then close the connections."""
        self._pool.submit(connections.close_all)
        self._pool.shutdown(wait=True)


class Batcher(Generic[T, R]):
    """Batch items: `await submit(item)` returns the item's result of `run(items)`.

    `run` is called with at most `most` items, in the thread or in several, never twice at once in one. If a whole
    batch fails, its items are retried one by one, unless the error is one of `whole`, which would affect each of
    them as well.
    `party_of` names the party of an item: if more items wait than fit into a batch, parties take turns.
    """

    def __init__(
        self,
        thread: DatabaseThread | Sequence[DatabaseThread],
        run: Callable[[Sequence[T]], Sequence[R]],
        most: int,
        *,
        whole: tuple[type[Exception], ...] = (),
        party_of: Callable[[T], Hashable] | None = None,
    ) -> None:
        self._idle = [thread] if isinstance(thread, DatabaseThread) else list(thread)
        self._run, self._most, self._whole = run, most, whole
        self._party_of = party_of
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Return how many items wait for their batch."""
        return len(self._waiting)

    async def submit(self, item: T) -> R:
        """Return the result of the item. Raises its error, or BatchAborted."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._idle:
            task = asyncio.create_task(self._work(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _work(self, thread: DatabaseThread) -> None:
        try:
            await self._run_batches(thread)
        finally:
            self._idle.append(thread)

    async def _run_batches(self, thread: DatabaseThread) -> None:
        last = 0
        while self._waiting:
            if last >= BUSY:
                await asyncio.sleep(LINGER_S)
                if not self._waiting:  # another thread took them
                    return
            last = min(len(self._waiting), self._most)
            batch = self._take_batch()
            try:
                await self._run_batch(thread, batch)
            except Exception as error:
                if len(batch) == 1 or isinstance(error, self._whole):
                    _fail(batch, error)
                    continue
                log.warning("batch_failed_retrying_items", items=len(batch), error=str(error).strip())
                for entry in batch:
                    try:
                        await self._run_batch(thread, [entry])
                    except Exception as alone:
                        _fail([entry], alone)
            except BaseException as error:
                _fail(batch, error)
                _fail(self._waiting, error)
                raise

    def _take_batch(self) -> list[tuple[T, asyncio.Future[R]]]:
        """Return the next batch: the first items, or if parties take turns, the first of each, then the second."""
        entries = self._waiting
        if self._party_of is not None and len(entries) > self._most:
            turns: Counter[Hashable] = Counter()
            ranked = []
            for place, (item, _) in enumerate(entries):
                party = self._party_of(item)
                ranked.append((turns[party], place))
                turns[party] += 1
            chosen = {place for _, place in sorted(ranked)[: self._most]}
            self._waiting = [entry for place, entry in enumerate(entries) if place not in chosen]
            return [entry for place, entry in enumerate(entries) if place in chosen]
        self._waiting = entries[self._most :]
        return entries[: self._most]

    async def _run_batch(self, thread: DatabaseThread, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        items = [item for item, _ in batch]
        answers = await thread.run(lambda: self._run(items))
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _fail(batch: Sequence[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else BatchAborted(repr(error)))


def _with_fresh_connections(call: Callable[[], R]) -> R:
    """Run `call` with connections that are not stale.

    Connections are checked from time to time, not for every batch, because each check costs a query. If a
    connection breaks in between, the next batch fails and closes it.
    """
    now = time.monotonic()
    keeps = connection.settings_dict["CONN_MAX_AGE"] != 0
    if now - getattr(_checked, "at", 0.0) > CHECK_INTERVAL_S:
        close_old_connections()
        _checked.at = now
    try:
        return call()
    except DatabaseError:
        connections.close_all()
        raise
    finally:
        if not keeps:
            connections.close_all()
