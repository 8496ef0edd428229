"""Make the batches of the loops wait longer for locked rows, so that a single pass finds every due row.

In production, a batch skips a row that a webhook has locked for a few milliseconds, and the next pass finds it. A
test that runs a single pass would fail at random. A row that stays locked for longer is skipped as in production.
While a test holds rows itself (`row_locks.held`), the limits are those of production.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet

from dispatch.core.db import isolation, lock_waits
from dispatch.core.db.errors import is_lock_timeout
from dispatch.core.db.lock_waits import short_wait
from dispatch.core.events import readers
from dispatch.telephony import sql

WAIT_MS = 500
LOCK_WAIT_S = 5.0
_PRODUCTION = (lock_waits.LOOP_S, lock_waits.WORKER_S)


@contextmanager
def production_limits() -> Iterator[None]:
    """Wait for locks only as long as in production."""
    before = (lock_waits.LOOP_S, lock_waits.WORKER_S)
    _set_limits(*_PRODUCTION)
    try:
        yield
    finally:
        _set_limits(*before)


def _set_limits(loop_s: float, worker_s: float) -> None:
    lock_waits.LOOP_S = readers.LOOP_S = loop_s
    lock_waits.WORKER_S = worker_s


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_waits, "LOOP_S", LOCK_WAIT_S)
    monkeypatch.setattr(readers, "LOOP_S", LOCK_WAIT_S)
    monkeypatch.setattr(lock_waits, "WORKER_S", LOCK_WAIT_S)
    lock_unlocked = isolation._lock_unlocked

    def wait_then_lock(rows: QuerySet[Any], limit: int, *columns: str) -> list[tuple[Any, ...]]:
        try:
            with transaction.atomic(using=rows.db), connections[rows.db].cursor() as cursor:
                cursor.execute("SELECT current_setting('lock_timeout')")
                (before,) = cursor.fetchone()
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{WAIT_MS}ms"])
                list(rows.select_for_update(no_key=True).values_list("pk")[:limit])
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        return lock_unlocked(rows, limit, *columns)

    monkeypatch.setattr(isolation, "_lock_unlocked", wait_then_lock)
    fetch_due = sql._fetch_due

    def wait_then_fetch(statement: str, *given: Any) -> list[Any]:
        try:
            with short_wait(WAIT_MS / 1000):
                fetch_due(statement.replace(" SKIP LOCKED", ""), *given)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
        return fetch_due(statement, *given)

    monkeypatch.setattr(sql, "_fetch_due", wait_then_fetch)
