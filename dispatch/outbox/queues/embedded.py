"""Carry pointers in an SQLite file: for development and for installations on a single machine.

All processes on the machine that open the same file share the queue. Times are `dispatch.core.clock`'s, in
milliseconds, so that tests can move them. Consumers wait by polling.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from dispatch.core import clock
from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable

POLL_S = 0.02
BUSY_TIMEOUT_S = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pointer (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  body TEXT NOT NULL,
  visible_at INTEGER NOT NULL,
  receipt TEXT
);
CREATE INDEX IF NOT EXISTS pointer_visible ON pointer (visible_at, id);
CREATE TABLE IF NOT EXISTS seen (dedup_id TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_until ON seen (until);
"""
_DELETE_EXPIRED_IDS = "DELETE FROM seen WHERE until <= ?"
_ADD_ID = "INSERT INTO seen (dedup_id, until) VALUES (?, ?) ON CONFLICT DO NOTHING"
_PUT = "INSERT INTO pointer (body, visible_at) VALUES (?, ?)"
_ANY_DUE = "SELECT 1 FROM pointer WHERE visible_at <= ? LIMIT 1"
_TAKE = """
UPDATE pointer SET visible_at = :again, receipt = id || '.' || :mark
WHERE id IN (SELECT id FROM pointer WHERE visible_at <= :now ORDER BY id LIMIT :n)
RETURNING id, body, receipt
"""
_ACK = "DELETE FROM pointer WHERE id = ? AND receipt = ?"
_RELEASE = "UPDATE pointer SET visible_at = ?, receipt = NULL WHERE id = ? AND receipt = ?"


def publisher(file: str) -> Publisher:
    """Return a publisher to the queue in `file`."""
    return EmbeddedPublisher(_File(file))


def consumer(file: str, name: str) -> Consumer:
    """Return a consumer of the queue in `file`."""
    return EmbeddedConsumer(_File(file), name)


class _File:
    """The file, opened on first use; one connection, used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Run a transaction: commit at the end, or roll back. Raises QueueUnavailable."""
        with self._lock:
            try:
                connection = self._open()
                connection.execute(begin)
                try:
                    yield connection
                except BaseException:
                    connection.rollback()
                    raise
                connection.commit()
            except (sqlite3.Error, OSError) as error:
                self.close()
                raise QueueUnavailable(f"the queue file {self._path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
            self._connection = connection
        return self._connection


class EmbeddedPublisher(Publisher):
    """Publish each batch in one transaction."""

    def __init__(self, file: _File) -> None:
        self._file = file

    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        now = clock.now_ms()
        until = now + int(settings.OUTBOX_DEDUP_S * 1000)
        try:
            with self._file.transaction() as connection:
                connection.execute(_DELETE_EXPIRED_IDS, (now,))
                for pointer, dedup_id in publications:
                    if connection.execute(_ADD_ID, (dedup_id, until)).rowcount:
                        connection.execute(_PUT, (pointer.to_json(), now))
        except QueueUnavailable as error:
            return [error] * len(publications)
        return [None] * len(publications)

    def ping(self) -> None:
        with self._file.transaction("BEGIN") as connection:
            connection.execute(_ANY_DUE, (clock.now_ms(),))

    def close(self) -> None:
        self._file.close()


class EmbeddedConsumer(Consumer):
    """Take due pointers in the order of their publication."""

    def __init__(self, file: _File, name: str) -> None:
        super().__init__(name)
        self._file = file

    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        while True:
            if taken := self._take_due(max_n):
                return taken
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(POLL_S, left))

    def close(self) -> None:
        self._file.close()

    def _take_due(self, max_n: int) -> list[Delivery]:
        now = clock.now_ms()
        with self._file.transaction("BEGIN") as connection:  # a read does not block the writers
            if not connection.execute(_ANY_DUE, (now,)).fetchone():
                return []
        again = now + int(settings.OUTBOX_VISIBILITY_S * 1000)
        mark = secrets.token_hex(8)
        with self._file.transaction() as connection:
            rows = connection.execute(_TAKE, {"again": again, "mark": mark, "now": now, "n": max_n}).fetchall()
        return [Delivery(body, receipt, self._ack, self._release) for _, body, receipt in sorted(rows)]

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        with self._file.transaction() as connection:
            connection.executemany(_ACK, [_row_and_receipt(delivery) for delivery in deliveries])

    def _release(self, delivery: Delivery, delay_s: float) -> None:
        with self._file.transaction() as connection:
            connection.execute(_RELEASE, (clock.now_ms() + int(delay_s * 1000), *_row_and_receipt(delivery)))


def _row_and_receipt(delivery: Delivery) -> tuple[int, str]:
    """Return the row's id and the receipt of this delivery; a later delivery of the row has another receipt."""
    return int(delivery.receipt.partition(".")[0]), delivery.receipt
