"""Small tools for the suites."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from django.db import connections

from tests.benchmarks import Result


def per_second(action: Callable[[], object], seconds: float = 3.0) -> float:
    """How often `action` runs in a second, after a short warming up."""
    warm = time.perf_counter() + seconds / 10
    while time.perf_counter() < warm:
        action()
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        action()
        count += 1
    return count / (now - start)


def timings_ms(action: Callable[[], object], times: int) -> list[float]:
    """How long each of `times` runs took, in milliseconds, sorted."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1000)
    return sorted(taken)


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` (0–1) of the sorted values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median_and_spread(
    name: str, values: Sequence[float], unit: str, target: str = "", peer: str = ""
) -> Iterator[Result]:
    """The median of several runs, with the lowest and highest in the unit's column."""
    spread = f" ({min(values):,.1f}–{max(values):,.1f})" if len(values) > 1 else ""
    yield Result(name, statistics.median(values), unit + spread, target, peer)


class Beside:
    """`with Beside(action):` runs `action` over and over in another thread while the block runs."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._action()
        finally:
            connections.close_all()

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
