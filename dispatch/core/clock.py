"""Provide the only clock that code reads. Tests move it with `travel()` instead of sleeping."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

# Seconds added to the machine's clock. A test's child process inherits it through the environment.
_offset = float(os.environ.get("DISPATCH_CLOCK_OFFSET_S", "0") or 0)
# Seconds by which PostgreSQL's clock is ahead of the machine's (`dispatch.core.db.clock_difference`).
_correction = 0.0
_shift = timedelta(seconds=_offset)  # both together


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return machine_now() + _shift


def machine_now() -> datetime:
    """Return the time of the machine's clock, without corrections."""
    return datetime.now(UTC)


def correction_s() -> float:
    """Return the seconds that are added to the machine's clock."""
    return _correction


def set_correction(seconds: float) -> None:
    """Add this to the machine's clock from now on, instead of an earlier correction."""
    global _correction, _shift
    _correction = seconds
    _shift = timedelta(seconds=_offset + _correction)


def now_ms() -> int:
    """Return the current time in Unix milliseconds."""
    return int(now().timestamp() * 1000)


def offset_ms() -> int:
    """Return the milliseconds that Redis scripts add to Redis's TIME, so that both clocks agree in tests."""
    return int(_offset * 1000)


def travel(seconds: float) -> None:
    """Move the clock of this process by `seconds` (tests only)."""
    _set_offset(_offset + seconds)


@contextmanager
def restored() -> Iterator[None]:
    """Restore the clock on exit."""
    before = _offset
    try:
        yield
    finally:
        _set_offset(before)


def _set_offset(seconds: float) -> None:
    global _offset, _shift
    _offset = seconds
    _shift = timedelta(seconds=_offset + _correction)
