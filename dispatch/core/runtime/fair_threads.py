"""Run tasks in threads, with a share for each key, so that slow tasks of one key do not delay those of others.

    REQUESTS = FairThreads("calls", threads=24, per_key=8)
    slot = REQUESTS.reserve(account_id, call_id)  # None: later
    if slot is not None:
        with slot:
            slot.start(request, call)

A slot is a free thread, so claimed work never waits for one. A key takes another thread only while more threads
are free than it holds, so that no number of slow keys takes them all.

The thread that was used last is used next, because each has a database connection, which prepares and plans each
statement. Threads that are not needed end.

Threads exist after `start_threads`, in long-running processes. In a shell, a short command or a test, `start` runs
the task in the caller's thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, ClassVar, Self

import structlog
from django.db import close_old_connections, connections

from dispatch.core.db import lock_waits
from dispatch.core.db.isolation import FailureRule, record_failure
from dispatch.core.db.lock_waits import limit_lock_waits
from dispatch.core.observability import metrics
from dispatch.core.runtime.fair_shares import FairShares

log = structlog.get_logger(__name__)

# An idle thread ends after this time, and with it its database connection and its clients (seconds).
IDLE_S = 10.0
# Time for running requests to end when the process stops. Later, their outcome counts as unknown (seconds).
REQUESTS_END_S = 12.0
# A key with a task that runs for longer is slow (seconds).
SLOW_S = 1.0
# A connection that was idle for longer is checked before its next use.
CHECK_AFTER_S = 1.0

# A task without a slot releases the slots of its work itself.
_Task = tuple["Slot | None", Callable[..., Any], tuple[Any, ...]]
# Of an idle thread. None: it ends.
_Inbox = SimpleQueue[_Task | None]


class Slot:
    """A reserved thread. Leaving the `with` block releases it, unless a task was started."""

    def __init__(self, threads: FairThreads, key: int, item: Hashable) -> None:
        self.key, self.item = key, item
        self.is_started = False
        self._threads = threads

    def start(self, work: Callable[..., Any], *args: Any) -> None:
        """Run `work(*args)` in the thread. An exception is logged. Call it outside any transaction, once."""
        self.is_started = True
        self._threads._start(self, work, args)

    def start_claimed(
        self,
        row_id: int,
        claim: Callable[[int], Any],
        work: Callable[..., Any],
        *,
        event: str,
        rule: FailureRule[int],
    ) -> bool:
        """Claim a row, and run `work` with what `claim` returned. Return False if there is nothing to do.

        A claim waits only briefly for a lock. If it fails, `record_failure` logs it as `event`. The slot is
        released unless work was started.
        """
        with self:
            try:
                with limit_lock_waits(lock_waits.LOOP_S):
                    claimed = claim(row_id)
            except Exception as error:
                record_failure(row_id, error, event=event, rule=rule)
                return False
            if claimed is None:
                return False
            self.start(work, claimed)
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_started:
            self._threads._release(self)


class FairThreads:
    """At most `threads` concurrent tasks, at most `per_key` of one key, and one of each item.

    `keeps_connection`: whether a task keeps its thread's database connection while it waits for its server.
    `slots`: how many slots there are, if not one for each thread; a task then waits for a free thread.
    """

    _all: ClassVar[list[FairThreads]] = []
    _are_started: ClassVar[bool] = False

    def __init__(
        self, name: str, *, threads: int, per_key: int, keeps_connection: bool = True, slots: int = 0
    ) -> None:
        self.name, self._threads, self._keeps_connection = name, threads, keeps_connection
        self._slots, self._max_alive = slots, threads
        self._shares = FairShares(slots or threads, per_key)
        self._items: dict[Hashable, tuple[int, float]] = {}  # with their keys, and since when
        self._alive = 0
        self._idle: list[_Inbox] = []  # the thread used last is the last
        self._waiting: deque[_Task] = deque()  # for a thread that ends its task
        self._ended = 0
        self._is_stopping = False
        self._changed = threading.Condition()
        FairThreads._all.append(self)

    def reserve(self, key: int, item: Hashable, *, limit: int | None = None, wait_s: float = 0.0) -> Slot | None:
        """Return a slot for the item, or None if its key has no share left, or the item is in progress.

        `limit`: at most this many slots of the key for now. `wait_s`: wait this long for a slot, unless a task of
        the key is slow.
        """
        with self._changed:
            if wait_s and not self._has_share(key, limit) and not self._is_slow(key):
                self._changed.wait_for(lambda: self._has_share(key, limit), wait_s)
            if self._is_stopping or item in self._items or not self._has_share(key, limit):
                return None
            self._items[item] = key, time.monotonic()
            self._shares.take(key)
        return Slot(self, key, item)

    def _is_slow(self, key: int) -> bool:
        before = time.monotonic() - SLOW_S
        return any(owner == key and since < before for owner, since in self._items.values())

    def _has_share(self, key: int, limit: int | None = None) -> bool:
        return self._shares.has_share(key, limit)

    @property
    def free(self) -> int:
        """Return how many slots are free."""
        return self._shares.free

    def full_keys(self) -> set[int]:
        """Return the keys that hold as many slots as they may."""
        with self._changed:
            return {key for key in self._shares.held if not self._has_share(key)}

    def items(self) -> set[Any]:
        """Return the items in progress."""
        with self._changed:
            return set(self._items)

    @property
    def ended(self) -> int:
        """Return how many tasks have ended, for `wait_for_end`."""
        return self._ended

    def wait_for_end(self, ended: int, timeout_s: float) -> bool:
        """Wait until a task ends after `ended` was read, at most `timeout_s`. Return whether one has."""
        with self._changed:
            if not self._items and self._ended == ended:
                return False
            return self._changed.wait_for(lambda: self._ended != ended, timeout_s)

    @classmethod
    def count(cls, most: int | None = None) -> int:
        """Return how many threads with a database connection `start_threads(most)` allows in all."""
        holding = [threads for threads in cls._all if threads._keeps_connection]
        return sum(threads._threads if most is None else min(most, threads._threads) for threads in holding)

    @classmethod
    def start_threads(cls, most: int | None = None) -> None:
        """Run tasks in threads from now on. `most`: of each kind, instead of the usual number."""
        for threads in cls._all:
            threads._is_stopping = False
            threads._max_alive = threads._threads if most is None else min(most, threads._threads)
            threads._shares.limit = (threads._slots or threads._max_alive) if threads._max_alive else 0
        cls._are_started = True

    @classmethod
    def stop_threads(cls, timeout_s: float) -> None:
        """Refuse new tasks, and wait for running ones, at most `timeout_s` in all.

        Those that are still running then end with the process.
        """
        deadline = time.monotonic() + timeout_s
        for threads in cls._all:
            threads._is_stopping = True
        for threads in cls._all:
            threads._stop(deadline)
        cls._are_started = False

    def _stop(self, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._items, max(0.0, deadline - time.monotonic()))
            if self._items:
                log.warning("requests_abandoned_at_shutdown", threads=self.name, requests=len(self._items))
            for inbox in self._idle:
                inbox.put(None)
            self._idle.clear()
            self._changed.wait_for(lambda: not self._alive, max(0.0, deadline - time.monotonic()))
            self._is_stopping = bool(self._alive)

    # --- Threads

    def _start(self, slot: Slot, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not FairThreads._are_started:
            try:
                self._run(work, args)
            finally:
                self._release(slot)
            return
        self._start_task((slot, work, args))

    def _start_task(self, task: _Task) -> None:
        with self._changed:
            if self._idle:
                self._idle.pop().put(task)
                return
            if self._alive >= self._max_alive:
                self._waiting.append(task)
                return
            self._alive += 1
        self._start_thread(task)

    def _start_thread(self, task: _Task) -> None:
        threading.Thread(target=self._work, args=(task,), name=f"{self.name}-request", daemon=True).start()

    def _release(self, slot: Slot) -> None:
        with self._changed:
            self._items.pop(slot.item, None)
            self._shares.release(slot.key)
            self._ended += slot.is_started
            self._changed.notify_all()

    def _work(self, first: _Task) -> None:
        inbox: _Inbox = SimpleQueue()
        task: _Task | None = first
        used_at = time.monotonic()
        while task is not None:
            slot, work, args = task
            if time.monotonic() - used_at > CHECK_AFTER_S:
                close_old_connections()
            if not self._run(work, args, is_timed=slot is not None):
                connections.close_all()  # it may have failed because the connection is broken
            used_at = time.monotonic()
            task = self._next_task(slot, inbox)
        connections.close_all()
        with self._changed:
            self._alive -= 1
            if self._waiting:  # a task that came while this thread was ending
                task = self._waiting.popleft()
                self._alive += 1
            self._changed.notify_all()
        if task is not None:
            self._start_thread(task)

    def _next_task(self, slot: Slot | None, inbox: _Inbox) -> _Task | None:
        """Release the slot, and wait for a task. Return None if the thread ends."""
        with self._changed:
            if slot is not None:
                self._release(slot)
            if self._waiting:
                return self._waiting.popleft()
            if self._is_stopping:
                return None
            self._idle.append(inbox)
        try:
            return inbox.get(timeout=IDLE_S)
        except Empty:
            with self._changed:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        return inbox.get()  # a task came at the last moment

    def _run(self, work: Callable[..., Any], args: tuple[Any, ...], *, is_timed: bool = True) -> bool:
        try:
            with metrics.request_seconds.labels(self.name).time() if is_timed else nullcontext():
                work(*args)
        except Exception:
            log.exception("request_task_failed", threads=self.name)
            return False
        return True
