"""Wait for events elsewhere: poll a condition until a deadline instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Real seconds until a wait fails: only a bound on failures, far above what a busy machine needs.
PATIENCE = 120.0


def between_polls() -> None:
    """Do what the dispatcher repeats. A fixture replaces this (`prompt_hang_ups`)."""


def wait_until(
    condition: Callable[[], T],
    timeout: float = PATIENCE,
    message: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """Return the first true value of `condition`, polled every `interval` seconds.

    After `timeout` seconds (leave it out, unless nothing is expected to happen) it raises AssertionError with
    `message`, which may be a function that describes the final state. An AssertionError inside `condition` counts
    as "not yet", and its text is shown.
    """
    deadline = time.monotonic() + timeout
    last = ""
    while True:
        try:
            value = condition()
        except AssertionError as error:
            last = str(error)
        else:
            if value:
                return value
            last = ""
        if time.monotonic() >= deadline:
            told = message() if callable(message) else message
            raise AssertionError(
                "\n".join(part for part in (f"not within {timeout:g} s", told, last) if part)
            ) from None
        between_polls()
        time.sleep(interval)
