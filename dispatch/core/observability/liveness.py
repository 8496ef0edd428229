"""Detect that this process is stuck, for the liveness probe of processes without a web server.

Code that must end or repeat sets a deadline. Servers that are away make no process overdue: requests to
them have time limits, and then the work is repeated.
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


def set_deadline(name: str, within_s: float) -> None:
    """Expect `set_deadline` or `clear_deadline` to be called again with this name within this many seconds."""
    with _lock:
        _due[name] = time.monotonic() + within_s


def clear_deadline(name: str) -> None:
    """Clear the deadline of this name."""
    with _lock:
        _due.pop(name, None)


def find_overdue() -> list[str]:
    """Return the names whose deadline has passed."""
    now = time.monotonic()
    with _lock:
        return sorted(name for name, due in _due.items() if due < now)


def reset() -> None:
    """Clear all deadlines (tests)."""
    with _lock:
        _due.clear()
