"""Detect that this process is stuck, for the liveness probe of processes without a web server.

Whatever must end or repeat names a time by which it does. Servers that are away make no process overdue: requests
to them have time limits, and then the work is repeated.
"""

from __future__ import annotations

import threading
import time

# Where a process answers, at METRICS_PORT.
PATH = "/healthz"
# A step of a loop may take this long; leadership is given up long before.
STEP_S = 900.0
# The event loop is never occupied for this long.
EVENT_LOOP_S, EVENT_LOOP_BEAT_S = 60.0, 1.0

_lock = threading.Lock()
_due: dict[str, float] = {}


def expect(name: str, within_s: float) -> None:
    """Expect that `expect` or `release` is called again with this name within some seconds."""
    with _lock:
        _due[name] = time.monotonic() + within_s


def release(name: str) -> None:
    """Stop expecting this name."""
    with _lock:
        _due.pop(name, None)


def overdue() -> list[str]:
    """Return the names whose time has passed."""
    now = time.monotonic()
    with _lock:
        return sorted(name for name, due in _due.items() if due < now)


def reset() -> None:
    """Expect nothing (tests)."""
    with _lock:
        _due.clear()
