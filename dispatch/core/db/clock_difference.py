"""Correct this process's clock when the machine's differs from PostgreSQL's.

Deadlines are written by one machine and judged by another. Each process therefore measures the difference when
it opens a database connection, at most every `EVERY_S` seconds, and follows PostgreSQL's clock while it is off by
more than `TOLERATED_S`. Only what is certain counts: the duration of the query is not part of the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg
import structlog
from django.db.backends.signals import connection_created

from dispatch.core import clock

log = structlog.get_logger(__name__)

EVERY_S = 30.0
TOLERATED_S = 1.0

_measured_at: float | None = None  # time.monotonic()


def install() -> None:
    """Measure from now on."""
    connection_created.connect(_on_connection, dispatch_uid="clock_difference")


def measure_difference(ask: Callable[[], datetime]) -> float:
    """Return by how many seconds, at least, PostgreSQL's clock is ahead of this machine's (negative: behind)."""
    before = clock.machine_now()
    theirs = ask()
    after = clock.machine_now()
    if theirs > after:
        return (theirs - after).total_seconds()
    return min(0.0, (theirs - before).total_seconds())


def follow_database_clock(difference_s: float) -> None:
    """Correct the clock by this difference, or end the correction if it is tolerated."""
    correction_s = difference_s if abs(difference_s) > TOLERATED_S else 0.0
    if abs(correction_s - clock.correction_s()) > TOLERATED_S:
        log.warning("clock_corrected", database_is_ahead_s=round(correction_s, 1), hint="Synchronize with NTP.")
    clock.set_correction(correction_s)


def _on_connection(connection: Any, **_: Any) -> None:
    """Measure on this new connection, outside of Django's cursors, unless another one did a moment ago."""
    global _measured_at
    now = time.monotonic()
    if connection.vendor != "postgresql" or (_measured_at is not None and now - _measured_at < EVERY_S):
        return
    _measured_at = now
    raw: psycopg.Connection[tuple[Any, ...]] = connection.connection

    def ask() -> datetime:
        row = raw.execute("SELECT clock_timestamp()").fetchone()
        assert row
        found: datetime = row[0]
        return found

    try:
        follow_database_clock(measure_difference(ask))
    except psycopg.Error as error:  # the caller finds out by itself
        log.warning("clock_not_measured", error=str(error).strip())
