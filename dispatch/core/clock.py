"""Provide the only clock that code reads. Tests move it with `travel()` instead of sleeping."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

# Seconds added to the machine's clock. A test's child process inherits it through the environment.
_offset = float(os.environ.get("DISPATCH_CLOCK_OFFSET_S", "0") or 0)


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC) + timedelta(seconds=_offset)


def now_ms() -> int:
    """Return the current time in Unix milliseconds."""
    return int(now().timestamp() * 1000)


def offset_ms() -> int:
    """Return the milliseconds that Redis scripts add to Redis's TIME, so that both clocks agree in tests."""
    return int(_offset * 1000)


def travel(seconds: float) -> None:
    """Move the clock of this process by `seconds` (tests only)."""
    global _offset
    _offset += seconds


@contextmanager
def restored() -> Iterator[None]:
    """Restore the clock on exit."""
    global _offset
    before = _offset
    try:
        yield
    finally:
        _offset = before
