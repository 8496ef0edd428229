"""Do once, after the commit, what several hooks of one transaction ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self


class JoinedHook(ABC):
    """A hook for `transaction.on_commit`. The first one of a class does the work of all of them.

    A savepoint that is rolled back takes its hooks with it.
    """

    @abstractmethod
    def __call__(self) -> None:
        """Do what this hook, and those that joined it, ask for."""

    @abstractmethod
    def join(self, later: Self) -> None:
        """Take over what a later hook of the same transaction asks for."""


def joined(hooks: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return a connection's hooks, as Django keeps them, without those that have joined an earlier one."""
    firsts: dict[type[Any], JoinedHook] = {}
    kept = []
    for hook in hooks:
        func = hook[1]
        if isinstance(func, JoinedHook):
            if first := firsts.get(type(func)):
                first.join(func)
                continue
            firsts[type(func)] = func
        kept.append(hook)
    return kept
