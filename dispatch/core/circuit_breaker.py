"""Provide circuit breakers: after a server fails, callers in this process fail fast until a probe succeeds.

A server that hangs then costs one timeout instead of one per call.
"""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import structlog

from dispatch.core.observability import metrics

log = structlog.get_logger(__name__)

# A probe that never reports its result, because its thread died, blocks other callers for this long (seconds).
PROBE_S = 30.0


class CircuitBreaker:
    """Track the state of one server, as seen by this process. `pause_s` is in real seconds.

    Closed: every caller is admitted. Open: for `pause_s` after a failure, no caller is. Half-open: afterwards one
    caller, the probe, is admitted while others are still rejected. Its result closes the circuit or opens it for
    another pause. Callers call `admit()` and report `record_success()` or `record_failure()`.
    """

    _all: ClassVar[list[CircuitBreaker]] = []

    def __init__(self, name: str, pause_s: float = 1.0) -> None:
        self.name, self.pause_s = name, pause_s
        self._open_until: float | None = None  # None: closed
        self._failing_since: float | None = None
        self.last_failure: tuple[type[BaseException], str] | None = (
            None  # without its traceback, which holds frames
        )
        self._lock = threading.Lock()
        CircuitBreaker._all.append(self)
        metrics.circuit_failures.labels(name)  # an alert sees the first failure

    @property
    def is_closed(self) -> bool:
        """Return whether no failure is known since the last success."""
        return self._open_until is None

    @property
    def is_open(self) -> bool:
        """Return whether a caller would be rejected now."""
        until = self._open_until
        return until is not None and time.monotonic() < until

    def failing_s(self) -> float:
        """Return for how many seconds the server has failed without a success in between; 0 if it works."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def admit(self) -> bool:
        """Return whether the caller may use the server now. The first caller after the pause is the probe."""
        if self._open_until is None:
            return True
        with self._lock:
            now = time.monotonic()
            if self._open_until is None:
                return True
            if now < self._open_until:
                return False
            self._open_until = now + PROBE_S
            return True

    def record_success(self) -> None:
        """Close the circuit."""
        if self._open_until is None:
            return
        with self._lock:
            was_open, self._open_until = self._open_until is not None, None
            self._failing_since = None
        if was_open:
            log.info("circuit_closed", server=self.name)

    def record_failure(self, error: BaseException | None = None) -> None:
        """Open the circuit for `pause_s`."""
        with self._lock:
            was_closed = self._open_until is None
            if self._failing_since is None:
                self._failing_since = time.monotonic()
            self._open_until = time.monotonic() + self.pause_s
            self.last_failure = (type(error), str(error)) if error else None
        metrics.circuit_failures.labels(self.name).inc()
        if was_closed:
            log.warning("circuit_opened", server=self.name, error=str(error or ""))

    def release_probe(self) -> None:
        """Let the next caller probe, since this probe was interrupted without a result."""
        with self._lock:
            if self._open_until is not None:
                self._open_until = time.monotonic()

    def reset(self) -> None:
        """Close the circuit without contacting the server."""
        with self._lock:
            self._open_until = self._failing_since = None

    @classmethod
    def reset_all(cls) -> None:
        """Close every circuit of this process (tests that stop and start servers)."""
        for breaker in cls._all:
            breaker.reset()
