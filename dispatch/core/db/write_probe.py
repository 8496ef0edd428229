"""Find out whether PostgreSQL accepts writes.

A server whose disk is full, or that is read-only, still answers reads.

A probe opens a session, writes a temporary file and commits a row. The file needs free space. A change of a small
row alone succeeds on a full disk, while its table still has room in its pages. A new session has the limits that
the server gives now.

Each process runs at most one probe at a time and one in EVERY_S, and only while a page, a scrape or a request to
/readyz asks for the result.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import NamedTuple

import psycopg
import structlog
from psycopg import errors

from dispatch.core.db import probe_link

log = structlog.get_logger(__name__)

EVERY_S = 5.0
# A caller waits this long for a result, then uses the one before. Shorter than the limit of the probes.
WAIT_S = 1.5
# A write without an end after this time is a fault. PostgreSQL cancels it later.
SLOW_S, STATEMENT_S, LOCK_S = 4.0, 6.0, 1.0
# Rows of the table. Each process writes one of them, so that processes rarely wait for each other.
SLOTS = 64
WORK_MEM, FILE_ROWS = "64kB", 20_000

_LIMITS = """
SELECT set_config('work_mem', %s, true), set_config('temp_tablespaces', '', true),
       set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)
"""
# Its rows do not fit into WORK_MEM, so PostgreSQL writes them to a file on the disk of the database.
FILE = f"SELECT count(*) FROM generate_series(1, {FILE_ROWS})"
_ROW = """
INSERT INTO core_writeprobe (slot, written_at) VALUES (%s, clock_timestamp())
ON CONFLICT (slot) DO UPDATE SET written_at = excluded.written_at
"""


class WriteFault(NamedTuple):
    """Why writes fail: in words that name no address, and the reason for the log."""

    words: str
    reason: str


FULL = "The disk of the database is full. Nothing can be saved."
READ_ONLY = "The database is read-only. Nothing can be saved."
REJECTED = "The database rejects changes. Nothing can be saved."
SLOW = WriteFault("The database does not complete changes. Nothing can be saved.", "a write does not end")


def write() -> None:
    """Write a file and a row in a new session. Raises psycopg.Error."""
    with probe_link.connect() as raw, raw.transaction():
        raw.execute(_LIMITS, [WORK_MEM, f"{round(STATEMENT_S * 1000)}ms", f"{round(LOCK_S * 1000)}ms"])
        try:
            with raw.transaction():
                raw.execute(FILE)
        except errors.ConfigurationLimitExceeded:  # the role's temp_file_limit; the row is still tried
            pass
        raw.execute(_ROW, [_slot])


class Prober:
    """The state of writes as seen by this process."""

    def __init__(self, ask: Callable[[], None] = write) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._running: Future[None] | None = None
        self._began = float("-inf")  # of the latest probe, in monotonic seconds
        self._fault: WriteFault | None = None

    def find_fault(self, wait_s: float | None = None) -> WriteFault | None:
        """Return why writes fail, or None. The result is at most about EVERY_S old.

        Waits at most `wait_s` (WAIT_S) after the start of a probe. Without a connection nothing is known about
        writes, so the last result counts.
        """
        running, began = self._start()
        wait([running], max(0.0, began + (WAIT_S if wait_s is None else wait_s) - time.monotonic()))
        if not running.done() and time.monotonic() - began >= SLOW_S:
            self._record(SLOW)
        return self._fault

    def _start(self) -> tuple[Future[None], float]:
        """Start a probe if one is due; return the latest one, and when it began."""
        with self._lock:
            now = time.monotonic()
            if self._running is None or (self._running.done() and now - self._began >= EVERY_S):
                self._running, self._began = Future(), now
                threading.Thread(target=self._run, args=(self._running,), name="probe-writes", daemon=True).start()
            return self._running, self._began

    def _run(self, running: Future[None]) -> None:
        try:
            self._ask()
        except Exception as error:
            self._record(_fault_of(error, self._fault))
        else:
            self._record(SLOW if time.monotonic() - self._began >= SLOW_S else None)
        finally:
            running.set_result(None)

    def _record(self, fault: WriteFault | None) -> None:
        before, self._fault = self._fault, fault
        if fault and fault != before:
            log.error("database_rejects_writes", reason=fault.reason)
        elif before and not fault:
            log.info("database_accepts_writes")


def _fault_of(error: Exception, before: WriteFault | None) -> WriteFault | None:
    """Return the fault that the error shows. One that says nothing about writes changes nothing."""
    state = getattr(error, "sqlstate", None) or ""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    is_connection = not isinstance(error, psycopg.Error) or not state or state.startswith(_UNRELATED_STATES)
    if is_connection or isinstance(error, _UNRELATED):
        return before
    if isinstance(error, errors.DiskFull):
        return WriteFault(FULL, reason)
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return WriteFault(READ_ONLY, reason)
    if isinstance(error, errors.QueryCanceled):
        return SLOW._replace(reason=reason)
    return WriteFault(REJECTED, reason)


# Connection, role, conflict, shutdown.
_UNRELATED_STATES = ("08", "28", "40", "57P")
# No free connection; another process writes the same row; the table does not exist before the first migration.
_UNRELATED = (errors.TooManyConnections, errors.LockNotAvailable, errors.UndefinedTable)

prober = Prober()
_slot = secrets.randbelow(SLOTS)


def find_fault() -> WriteFault | None:
    """Return why PostgreSQL rejects the writes of this process, or None."""
    return prober.find_fault()


def reset() -> None:
    """Forget the last result: in a forked process, and in tests."""
    global prober, _slot
    prober, _slot = Prober(), secrets.randbelow(SLOTS)


os.register_at_fork(after_in_child=reset)
