"""Limit lock waits in bulk work: a row that another session holds delays only itself.

Inside `limit_lock_waits`, every transaction that calls `apply_limit` (as the locking reads of `core.db.fast_rows`
do) waits for a lock no longer than the limit. Work that fails with a lock timeout is deferred.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from django.db import transaction

from dispatch.core.db import prepared

# Limits in seconds, for a loop that handles many rows and for a worker that handles one.
LOOP_S, WORKER_S = 0.25, 1.0

_limit_s: ContextVar[float | None] = ContextVar("lock_wait_limit_s", default=None)


@contextmanager
def limit_lock_waits(seconds: float) -> Iterator[None]:
    """Limit the lock waits of transactions that begin inside, in this thread."""
    token = _limit_s.set(seconds)
    try:
        yield
    finally:
        _limit_s.reset(token)


def apply_limit(*, defers_fsync: bool = False) -> None:
    """Limit the lock waits of the running transaction, including its commit.

    Does nothing outside `limit_lock_waits`. `defers_fsync`: also do what `prepared.defer_fsync` does.
    """
    parameters = dict(prepared.NO_FSYNC) if defers_fsync else {}
    if (seconds := _limit_s.get()) is not None:
        parameters["lock_timeout"] = _milliseconds(seconds)
    if parameters:
        prepared.set_local(**parameters)


@contextmanager
def short_wait(seconds: float) -> Iterator[None]:
    """Open a savepoint with this lock timeout. Afterwards the previous limit applies again."""
    with transaction.atomic():
        prepared.set_local(lock_timeout=_milliseconds(seconds))
        yield
    if _limit_s.get() is None:
        prepared.set_local(lock_timeout="DEFAULT")
    apply_limit()


@contextmanager
def limited_transaction(*, defers_fsync: bool = False) -> Iterator[None]:
    """Open a transaction that applies the limit, as `apply_limit` does."""
    with transaction.atomic():
        apply_limit(defers_fsync=defers_fsync)
        yield


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


class RecentlyBlocked:
    """Remember keys of rows that failed or were locked a moment ago in this process, to skip them for `seconds`.

    With `longest_s`, each consecutive failure of a row doubles its pause, up to that.
    """

    all: ClassVar[list[RecentlyBlocked]] = []

    def __init__(self, seconds: float, longest_s: float = 0.0) -> None:
        self._seconds, self._longest_s = seconds, max(seconds, longest_s)
        self._until: dict[Hashable, tuple[float, float]] = {}  # when its pause ends, and how long it is
        self.all.append(self)

    def add(self, key: Hashable) -> None:
        """Skip the row for a pause."""
        now = time.monotonic()
        until, last_s = self._until.get(key, (0.0, 0.0))
        pause_s = min(last_s * 2, self._longest_s) if until + last_s > now else self._seconds
        self._until[key] = now + pause_s, pause_s

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def keys(self) -> set[Any]:
        """Return the keys that are still skipped."""
        now = time.monotonic()
        # A row that did not fail again within as long as its pause starts over. Other threads may add rows now.
        self._until = {key: (until, s) for key, (until, s) in list(self._until.items()) if until + s > now}
        return {key for key, (until, _) in self._until.items() if until > now}

    def clear(self) -> None:
        """Skip nothing."""
        self._until.clear()

    @classmethod
    def reset_all(cls) -> None:
        """Clear all keys of every instance (tests)."""
        for instance in cls.all:
            instance.clear()
