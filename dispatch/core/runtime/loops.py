"""Define the named loops of the dispatcher process, which `loop_runner` runs.

A slice lists its loops as `LOOPS` in its `loops.py`. A test calls `find_loop("auditor").step()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule


@dataclass(frozen=True)
class Loop:
    """A repeated task.

    `step` does one pass and returns the seconds until the next (0: immediately; None: `interval_s`). It runs in a
    thread with dedicated database connections and must be idempotent. An exception is logged and counted, and the
    step is retried with backoff. `elected` means that only one process at a time runs the loop; a step longer than
    `limit_s` loses its leadership. `needs_redis` names the purpose of the Redis without which an elected loop gets
    nothing done: a process that cannot reach it hands the leadership over. `needs_provider`: so does a process
    that cannot reach the phone provider while another one can.

    `due`: an SQL condition for the step having something to do, for loops that usually find nothing. After a step
    that returned None, the loop then rests until the condition holds or it is notified, at most `rest_s`. One
    statement checks the conditions of all resting loops (`due_checks`). It may hold too often, and must hold a
    second early where the step waits for an exact time. Its parameters: %(now)s, %(soon)s, %(offset)s.
    """

    name: str
    step: Callable[[], float | None]
    interval_s: float
    elected: bool = False
    limit_s: float = 60.0
    needs_redis: str | None = None
    needs_provider: bool = False
    due: str = ""
    rest_s: float = 60.0


class NothingSucceeded(Exception):
    """Every item of a step failed separately, so another process may succeed."""

    def __init__(self, failed: int) -> None:
        super().__init__(f"All {failed} failed.")
        self.failed = failed


class Tally:
    """Count the successes and failures of one step's items; thread-safe."""

    def __init__(self) -> None:
        self._succeeded: list[None] = []
        self._failed: list[None] = []

    def succeeded(self) -> None:
        self._succeeded.append(None)

    def failed(self) -> None:
        self._failed.append(None)

    def check(self) -> None:
        """Raise NothingSucceeded if there were items and all of them failed."""
        if self._failed and not self._succeeded:
            raise NothingSucceeded(len(self._failed))


@dataclass(frozen=True)
class Service:
    """A task that runs continuously in the dispatcher's event loop, instead of in passes.

    `run` gets an event and ends soon after it is set. If it ends or raises earlier, this is logged and counted,
    and it is restarted with backoff. `connections`: how many of its threads keep a database connection.
    """

    name: str
    run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]
    interval_s: float = 0.0
    elected: bool = False
    connections: int = 1


def all_loops() -> list[Loop | Service]:
    """Return every loop of every installed app. Raises ValueError if two have the same name."""
    by_name: dict[str, Loop | Service] = {}
    for config in apps.get_app_configs():
        if config.module is None or not module_has_submodule(config.module, "loops"):
            continue
        for loop in getattr(import_module(f"{config.name}.loops"), "LOOPS", ()):
            if loop.name in by_name:
                raise ValueError(f"Two loops are called {loop.name!r}.")
            by_name[loop.name] = loop
    return list(by_name.values())


def find_loop(name: str) -> Loop:
    """Return the loop with this name. Raises KeyError, which lists the existing names."""
    loops = {loop.name: loop for loop in all_loops() if isinstance(loop, Loop)}
    if name not in loops:
        raise KeyError(f"No loop is called {name!r}. Choose from: {', '.join(sorted(loops))}.")
    return loops[name]
