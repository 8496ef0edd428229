"""What running processes cost: CPU seconds of process trees (psutil, Linux and macOS)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from types import MappingProxyType

import psutil


def cpu_s(pid: int, *, alone: bool = False) -> float:
    """Return the user and system seconds of a process and, unless `alone`, of its descendants.

    Descendants that have ended are included.
    """
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if alone:
            spent = process.cpu_times()
            return float(spent.user + spent.system)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                spent = one.cpu_times()
                total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


class Meter:
    """Measure the CPU seconds of named processes.

    `with Meter({"web": 4711}) as meter: …; meter.spent["web"]`. The descendants of processes in `alone` do not
    count. `without`: a descendant of the process of that name that does not count.
    """

    def __init__(
        self,
        pids: Mapping[str, int],
        alone: Collection[str] = (),
        without: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._pids, self._alone, self._without = dict(pids), frozenset(alone), dict(without)
        self.spent: dict[str, float] = {}

    def __enter__(self) -> Meter:
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        now = self._now()
        self.spent = {name: now[name] - self._before[name] for name in now}

    def _now(self) -> dict[str, float]:
        spent = {name: cpu_s(pid, alone=name in self._alone) for name, pid in self._pids.items()}
        for name, pid in self._without.items():
            spent[name] -= cpu_s(pid, alone=True)
        return spent


def kinds_of(spent: Mapping[str, float]) -> dict[str, float]:
    """Return the sum for each kind of process: names without their number."""
    kinds: dict[str, float] = {}
    for name, value in spent.items():
        kind = name.rstrip(" 0123456789")
        kinds[kind] = kinds.get(kind, 0.0) + value
    return kinds
