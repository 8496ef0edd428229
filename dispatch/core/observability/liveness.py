"""Report whether this process's main loop still runs: what /healthz at METRICS_PORT answers.

A dispatcher beats in its event loop, a worker between jobs, an autoscaler at each step. A process that has not
beaten within its limit is stuck; its orchestrator should restart it. No server is asked, so an outage restarts
nothing.
"""

from __future__ import annotations

import time

PATH = "/healthz"

_limit_s: float | None = None
_last_beat = 0.0


def expect_beats(limit_s: float) -> None:
    """Report this process as stuck if no beat follows another within `limit_s` seconds, from now on."""
    global _limit_s
    _limit_s = limit_s
    beat()


def beat() -> None:
    """Record that the main loop runs."""
    global _last_beat
    _last_beat = time.monotonic()


def is_alive() -> bool:
    """Return whether the last beat is recent enough; True before `expect_beats`."""
    return _limit_s is None or time.monotonic() - _last_beat <= _limit_s


def reset() -> None:
    """Expect no beats (tests)."""
    global _limit_s
    _limit_s = None
