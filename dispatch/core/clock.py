"""The one clock. Code asks `now()`; tests move it with `travel()` instead of sleeping."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

# Seconds added to the machine's clock; a child process of a test inherits it through the environment.
_offset = float(os.environ.get("DISPATCH_CLOCK_OFFSET_S", "0") or 0)


def now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC) + timedelta(seconds=_offset)


def now_ms() -> int:
    """The present moment in Unix milliseconds."""
    return int(now().timestamp() * 1000)


def offset_ms() -> int:
    """What Redis scripts add to Redis's own TIME so that both clocks agree in tests."""
    return int(_offset * 1000)


def travel(seconds: float) -> None:
    """Moves the clock of this process by `seconds` (tests only)."""
    global _offset
    _offset += seconds


@contextmanager
def kept() -> Iterator[None]:
    """Puts the clock back on leaving."""
    global _offset
    before = _offset
    try:
        yield
    finally:
        _offset = before
