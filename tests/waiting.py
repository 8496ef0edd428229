"""Waiting for what happens elsewhere: poll a condition until a deadline, never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Real seconds until a wait counts as failed: a bound on failures only, far above what a busy machine needs.
PATIENCE = 120.0


def wait_until(
    condition: Callable[[], T],
    timeout: float = PATIENCE,
    message: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """The first true value of `condition`, asked every `interval` seconds.

    After `timeout` seconds (leave it out, unless nothing is expected to come) it raises AssertionError with
    `message`, which may be a function, to tell how things stood at the end. An AssertionError inside `condition`
    counts as "not yet", and its text is shown.
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
        time.sleep(interval)
