"""Do once, after the commit, what several hooks of one transaction ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self


class JoinedHook(ABC):
    """A hook for `transaction.on_commit`. The last one of a class does the work of all of them.

    A savepoint that is rolled back takes its hooks with it.
    """

    @abstractmethod
    def __call__(self) -> None:
        """Do what this hook, and those that joined it, ask for."""

    @abstractmethod
    def join(self, earlier: Self) -> None:
        """Take over what an earlier hook of the same transaction asks for."""


def joined(hooks: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return a connection's hooks, as Django keeps them, without those that have joined a later one."""
    lasts: dict[type[Any], JoinedHook] = {}
    kept = []
    for hook in reversed(hooks):
        func = hook[1]
        if isinstance(func, JoinedHook):
            if last := lasts.get(type(func)):
                last.join(func)
                continue
            lasts[type(func)] = func
        kept.append(hook)
    return kept[::-1]
