"""A server that failed is left alone for a while: one that hangs must not cost every call its time-out."""

from __future__ import annotations

import time

_all: list[Spared] = []


class Spared:
    """What this process remembers of one server's failure; `pause_s` in real seconds."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self._until = 0.0
        _all.append(self)

    def __bool__(self) -> bool:
        """Whether it is left alone now."""
        return time.monotonic() < self._until

    def failed(self) -> None:
        """From now on it is left alone."""
        self._until = time.monotonic() + self.pause_s

    def believe_again(self) -> None:
        """Forgets the failure."""
        self._until = 0.0


def believe_all_again() -> None:
    """Forgets every failure that this process has met (tests, which stop and start servers)."""
    for spared in _all:
        spared.believe_again()
