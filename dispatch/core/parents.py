"""A process that does not outlive the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any

_prctl: Any = None
with contextlib.suppress(OSError, AttributeError):  # not Linux: a killed parent leaves its children
    _prctl = ctypes.CDLL(None, use_errno=True).prctl
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Has the kernel send this process SIGTERM when its parent dies, however it dies; `parent` is what its process
    id was before the fork. Ends at once if that one is dead already. May be called between fork and exec."""
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)
