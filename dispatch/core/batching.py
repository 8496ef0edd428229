"""Many coroutines, few transactions: what arrives while one batch runs is the next batch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import structlog
from django.db import DatabaseError, close_old_connections, connection, connections

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 5.0
# Under load a batch waits a moment for more: a transaction costs about as much for thirty as for three. Who comes
# alone, as in a single group, never waits.
BUSY = 4
LINGER_S = 0.004
_looked = threading.local()

T = TypeVar("T")
R = TypeVar("R")


class DatabaseThread:
    """One thread with database connections of its own."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, call: Callable[[], R]) -> R:
        """Runs `call` there. Raises what it raises; a broken connection is dropped first."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _fresh, call)

    def close(self) -> None:
        """Lets what runs end, and closes the connections."""
        self._pool.submit(connections.close_all)
        self._pool.shutdown(wait=True)


class Batcher(Generic[T, R]):
    """`await submit(item)` gives what `run(items)` answers for it; `run` is called in the thread with at most
    `most`
    items, never twice at once. When a whole batch fails, its items are tried one by one."""

    def __init__(self, thread: DatabaseThread, run: Callable[[Sequence[T]], Sequence[R]], most: int) -> None:
        self._thread, self._run, self._most = thread, run, most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        last = 0
        while self._waiting:
            if last >= BUSY:
                await asyncio.sleep(LINGER_S)
            last = min(len(self._waiting), self._most)
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                await self._one(batch)
            except DatabaseError as error:
                if len(batch) == 1:
                    _fail(batch, error)
                    continue
                log.warning("a batch failed, one by one now", items=len(batch), error=str(error).strip())
                for entry in batch:
                    try:
                        await self._one([entry])
                    except Exception as alone:
                        _fail([entry], alone)
            except BaseException as error:
                _fail(batch, error)
                if not isinstance(error, Exception):
                    _fail(self._waiting, error)
                    raise

    async def _one(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        items = [item for item, _ in batch]
        answers = await self._thread.run(lambda: self._run(items))
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def _fail(batch: Sequence[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def _fresh(call: Callable[[], R]) -> R:
    """Runs `call` with connections that are not stale. They are looked at now and then, not for every batch:
    each look
    costs a question to the server, and one that broke is dropped with the batch that found it."""
    now = time.monotonic()
    keeps = connection.settings_dict["CONN_MAX_AGE"] != 0
    if now - getattr(_looked, "at", 0.0) > LOOK_EVERY_S:
        close_old_connections()
        _looked.at = now
    try:
        return call()
    except DatabaseError:
        connections.close_all()
        raise
    finally:
        if not keeps:
            connections.close_all()
