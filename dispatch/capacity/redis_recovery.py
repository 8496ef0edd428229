"""Bring Redis up to date with the decisions that Postgres made meanwhile, outside of every transaction.

Lines and rates are decided within the transactions of jobs, leads and alerts. Such a transaction never rebuilds
Redis: it decides in Postgres. The loop `redis_generation` of each dispatcher rebuilds a Redis that has lost its
data, and a thread of each process that decided without Redis adds its decisions when Redis is valid again. Until
then the process goes on without Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

import structlog
from django.db import connections

from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import REDIS_ERRORS

log = structlog.get_logger(__name__)

# How often the thread checks whether Redis is valid again (seconds).
CHECK_S = 0.5
# How long a reset waits for a pass of the thread (seconds).
STOP_S = 30.0


class RedisRecovery:
    """The recovery of one process. At most one thread runs it.

    `catch_up` writes the decisions since a moment to Redis. It raises any of REDIS_ERRORS if Redis is unavailable.
    """

    def __init__(self, catch_up: Callable[[datetime], None]) -> None:
        self._catch_up = catch_up
        self._lock = threading.Lock()
        self._since: datetime | None = None
        # The first decision whose transaction may have been committed after a pass read the decisions.
        self._late_since: datetime | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def is_pending(self) -> bool:
        """Return whether Redis lacks decisions of this process, which therefore goes on without Redis."""
        return self._since is not None

    @property
    def is_idle(self) -> bool:
        """Return whether Redis has every decision of this process that is committed."""
        with self._lock:
            return self._thread is None

    def start(self, since: datetime) -> None:
        """Recover in a thread, without waiting for it: Redis may not know this process's decisions since then."""
        with self._lock:
            self._since = _earliest(self._since, since)
            self._start_thread()

    def add_committed(self, since: datetime) -> None:
        """Add a decision made without Redis, now that it is committed: an earlier pass has not seen it.

        Redis decides meanwhile, if it is valid.
        """
        with self._lock:
            self._late_since = _earliest(self._late_since, since)
            self._start_thread()

    def reset(self) -> None:
        """Stop the thread and clear the state (tests)."""
        with self._lock:
            thread, stopping = self._thread, self._stopping
            self._thread, self._stopping = None, threading.Event()
            self._since = self._late_since = None
        stopping.set()
        if thread is not None:
            thread.join(STOP_S)

    def _start_thread(self) -> None:
        """Start the thread unless it runs. In the child of a fork it does not."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping,), name="redis-recovery", daemon=True
            )
            self._thread.start()

    def _run(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                try:
                    if self._recover(stopping) and self._end_thread(stopping):
                        return
                except REDIS_ERRORS as error:
                    log.debug("redis_recovery_waiting", error=str(error))
                except Exception:
                    log.exception("redis_recovery_failed")
                stopping.wait(CHECK_S)
        finally:
            connections.close_all()

    def _end_thread(self, stopping: threading.Event) -> bool:
        """Let the next decision start another thread. Return False if there is one already to add."""
        connections.close_all()
        with self._lock:
            if stopping.is_set():
                return True
            if self._since is not None or self._late_since is not None:
                return False
            self._thread = None
            return True

    def _recover(self, stopping: threading.Event) -> bool:
        """Add the decisions to a valid Redis. Return False if Redis is not valid, or was lost again meanwhile."""
        if self._since is None and self._late_since is None:
            return True
        if generation.current_generation() is None:
            return False
        began = clock.now()
        with self._lock:
            if (since := self._since) is not None:
                since = self._since = _earliest(self._late_since, since)
                self._late_since = None
        if since is not None:
            self._catch_up(since)
            with self._lock:
                if stopping.is_set():
                    return True
                # next, what other threads of this process decided without Redis during this pass
                self._since, self._late_since = None, _earliest(self._late_since, began)
        while (late_since := self._take_late()) is not None:
            try:
                self._catch_up(late_since)
            except Exception:
                with self._lock:
                    self._since = _earliest(self._since, late_since)
                raise
        if since is not None:
            log.info("redis_recovered", away_s=round((began - since).total_seconds(), 1))
        return self._since is None  # else another thread has lost Redis since

    def _take_late(self) -> datetime | None:
        with self._lock:
            late_since, self._late_since = self._late_since, None
            return late_since


def _earliest(known: datetime | None, moment: datetime) -> datetime:
    return moment if known is None else min(known, moment)
