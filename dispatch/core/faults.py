"""The one hook by which tests stop a process at a named point.

`point("jobs.offer.committed")` does nothing unless that name is armed: in-process by `arm()`, or in a child
process by `DISPATCH_FAULTS="jobs.offer.committed=kill"` under the development flag.
Actions: `kill` (SIGKILL to this process, as a power cut), `raise` (Interrupted).
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(BaseException):
    """The process "died" here. Not an Exception, so that no handler of ours survives it."""


_armed: dict[str, Callable[[], None]] = {}


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupt() -> None:
    raise Interrupted


_ACTIONS = {"kill": _kill, "raise": _interrupt}


def point(name: str) -> None:
    """Passes, unless a test armed this name."""
    if _armed and (action := _armed.get(name)):
        action()


@contextmanager
def arm(name: str, action: Callable[[], None] | str = "raise") -> Iterator[None]:
    """Arms `name` while the block runs; `action` is `kill`, `raise` or a callable."""
    _armed[name] = _ACTIONS[action] if isinstance(action, str) else action
    try:
        yield
    finally:
        _armed.pop(name, None)


def load_from_environment() -> None:
    """Arms what DISPATCH_FAULTS names (comma-separated `point=action`); called under the development flag only."""
    for item in filter(None, os.environ.get("DISPATCH_FAULTS", "").split(",")):
        name, _, action = item.partition("=")
        _armed[name.strip()] = _ACTIONS[action.strip() or "kill"]
