"""The named loops of the dispatcher process: what they are and how they are found. `loop_runner` runs them.

A slice lists its loops as `LOOPS` in its `loops.py`. A test calls `find("auditor").step()`."""

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
    """`step` does one pass and returns the seconds until it wants to run again (0: at once; None: `interval_s`).

    It runs in a thread with database connections of its own, may raise (logged, counted, tried again with growing
    pauses), and must be repeatable. `elected`: only one process at a time runs it."""

    name: str
    step: Callable[[], float | None]
    interval_s: float
    elected: bool = False


@dataclass(frozen=True)
class Service:
    """What is no pass that repeats but runs all the time, in the dispatcher's own event loop.

    `run` is given an event and ends soon after it is set. If it ends or raises before, that is logged and counted,
    and it is started again after growing pauses."""

    name: str
    run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]
    interval_s: float = 0.0
    elected: bool = False


def all_loops() -> list[Loop | Service]:
    """Every loop of every installed app. Raises ValueError when two have the same name."""
    found: dict[str, Loop | Service] = {}
    for config in apps.get_app_configs():
        # core's own loops live in `own_loops`, for `loops` is this module
        name = "own_loops" if config.name == "dispatch.core" else "loops"
        if config.module is None or not module_has_submodule(config.module, name):
            continue
        for loop in getattr(import_module(f"{config.name}.{name}"), "LOOPS", ()):
            if loop.name in found:
                raise ValueError(f"Two loops are called {loop.name!r}.")
            found[loop.name] = loop
    return list(found.values())


def find(name: str) -> Loop:
    """The loop of that name. Raises KeyError naming those that exist."""
    loops = {loop.name: loop for loop in all_loops() if isinstance(loop, Loop)}
    if name not in loops:
        raise KeyError(f"No loop is called {name!r}; there are {', '.join(sorted(loops))}.")
    return loops[name]
