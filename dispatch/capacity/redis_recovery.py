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
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def is_pending(self) -> bool:
        """Return whether Redis lacks decisions of this process."""
        return self._since is not None

    def start(self, since: datetime) -> None:
        """Recover in a thread, without waiting for it: Redis may not know this process's decisions since then."""
        with self._lock:
            self._since = since if self._since is None else min(self._since, since)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, args=(self._stopping,), name="redis-recovery", daemon=True
                )
                self._thread.start()

    def resume(self) -> None:
        """Start the thread again if it ended, as in the child of a fork."""
        if (since := self._since) is not None and not (self._thread and self._thread.is_alive()):
            self.start(since)

    def reset(self) -> None:
        """Stop the thread and clear the state (tests)."""
        with self._lock:
            thread, stopping = self._thread, self._stopping
            self._thread, self._stopping, self._since = None, threading.Event(), None
        stopping.set()
        if thread is not None:
            thread.join(STOP_S)

    def _run(self, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                try:
                    if self._recover(stopping):
                        return
                except REDIS_ERRORS as error:
                    log.debug("redis_recovery_waiting", error=str(error))
                except Exception:
                    log.exception("redis_recovery_failed")
                stopping.wait(CHECK_S)
        finally:
            connections.close_all()

    def _recover(self, stopping: threading.Event) -> bool:
        """Add the decisions to a valid Redis. Return False if Redis is not valid, or was lost again meanwhile."""
        if (since := self._since) is None:
            return True
        if generation.current_generation() is None:
            return False
        began = clock.now()
        self._catch_up(since)
        with self._lock:
            if stopping.is_set():
                return True
            self._since = None
        try:  # what other threads of this process decided without Redis during the first pass
            self._catch_up(began)
        except Exception:
            with self._lock:
                self._since = began if self._since is None else min(self._since, began)
            raise
        log.info("redis_recovered", away_s=round((began - since).total_seconds(), 1))
        return self._since is None  # else another thread has lost Redis since
