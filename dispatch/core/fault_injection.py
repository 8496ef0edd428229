"""Crash a process at a named crash point, for tests.

`crash_point("jobs.offer.committed")` does nothing unless that name is armed: in-process by `arm_crash_point()`,
or in a child process by `DISPATCH_FAULTS="jobs.offer.committed=kill"` under the development flag.
Actions: `kill` (SIGKILL to this process, as in a power failure) and `raise` (raise Interrupted).
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(BaseException):
    """The simulated death of the process. A BaseException, so that no handler for Exception catches it."""


_armed: dict[str, Callable[[], None]] = {}


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupt() -> None:
    raise Interrupted


_ACTIONS = {"kill": _kill, "raise": _interrupt}


def crash_point(name: str) -> None:
    """Run the action if a test has armed this name; otherwise do nothing."""
    if _armed and (action := _armed.get(name)):
        action()


@contextmanager
def arm_crash_point(name: str, action: Callable[[], None] | str = "raise") -> Iterator[None]:
    """Arm `name` while the block runs. `action` is `kill`, `raise` or a callable."""
    _armed[name] = _ACTIONS[action] if isinstance(action, str) else action
    try:
        yield
    finally:
        _armed.pop(name, None)


def load_from_environment() -> None:
    """Arm the points in DISPATCH_FAULTS (`point=action`, separated by commas). Called in development only."""
    for item in filter(None, os.environ.get("DISPATCH_FAULTS", "").split(",")):
        name, _, action = item.partition("=")
        _armed[name.strip()] = _ACTIONS[action.strip() or "kill"]
