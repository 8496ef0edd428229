"""Cut connections to a server that hangs after another one became the primary.

A server whose processes hang, on a broken disk for example, keeps its connections: its kernel acknowledges what
is sent, so no timeout of libpq or TCP ends the wait for a reply. After a failover to another of several hosts,
such connections are useless. A thread looks for statements without a reply, asks which host accepts writes now,
and cuts the connections to any other that opens no session for writes. Their statements fail, and the pool
connects to the new primary. A host that opens one is in use: two names, or two poolers, may lead to one primary.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import psycopg
import structlog
from psycopg.pq import TransactionStatus

LOOK_EVERY_S = 1.0
STUCK_AFTER_S = 5.0  # without a reply, until the hosts are asked
ASK_EVERY_S = 5.0

log = structlog.get_logger(__name__)

Address = tuple[str, int]


class FindPrimary(Protocol):
    """Return the host that accepts writes, asking all or `only` one. Raises psycopg.Error if none does."""

    def __call__(self, only: Address | None = None) -> Address: ...


class Watch:
    """The connections of this process, and since when each waits for a reply (time.monotonic()), or None."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[Any, float | None] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0

    def add(self, connection: Any, find_primary: FindPrimary) -> None:
        """Watch the connection."""
        with self._lock:
            self._waiting.setdefault(connection, None)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._look_on, args=(find_primary,), name="former-primary", daemon=True
                )
                self._thread.start()

    def look(self, find_primary: FindPrimary, now: float) -> int:
        """Cut the connections to hosts that hang and are not the primary; return how many."""
        hosts = self._hosts_without_reply(now)
        if not hosts or now - self._asked_at < ASK_EVERY_S:
            return 0
        self._asked_at = now
        try:
            primary = find_primary()
        except psycopg.Error:  # an outage without a failover, or not yet
            return 0
        former = {host for host in hosts - {primary} if not _accepts_writes(host, find_primary)}
        cut = sum(_cut(connection) for connection in self._connections() if _address(connection) in former)
        if cut:
            log.warning("connections_to_former_primary_cut", connections=cut, primary=f"{primary[0]}:{primary[1]}")
        return cut

    def _hosts_without_reply(self, now: float) -> set[Address]:
        found = set()
        for connection in self._connections():
            is_waiting = connection.pgconn.transaction_status == TransactionStatus.ACTIVE
            since = (self._waiting.get(connection) or now) if is_waiting else None
            with self._lock:
                self._waiting[connection] = since
            if since is not None and now - since >= STUCK_AFTER_S and (address := _address(connection)):
                found.add(address)
        return found

    def _connections(self) -> list[Any]:
        with self._lock:
            return [connection for connection in self._waiting if not connection.closed]

    def _look_on(self, find_primary: FindPrimary) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            try:
                self.look(find_primary, time.monotonic())
            except Exception:
                log.exception("former_primary_watch_failed")


def _accepts_writes(host: Address, find_primary: FindPrimary) -> bool:
    try:
        find_primary(host)
    except psycopg.Error:
        return False
    return True


def _address(connection: Any) -> Address | None:
    with suppress(psycopg.Error, ValueError):  # closed meanwhile
        return connection.info.host, connection.info.port
    return None


def _cut(connection: Any) -> bool:
    """Shut down the connection's socket. The thread that uses the connection gets an error."""
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as link:
            if link.family == socket.AF_UNIX or link.getpeername()[1] != connection.info.port:
                return False
            link.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):  # closed meanwhile
        return False
    return True


watch = Watch()


def _begin_again() -> None:
    """A forked child shares the sockets of its parent, whose connections are not its own."""
    global watch
    watch = Watch()


os.register_at_fork(after_in_child=_begin_again)
