"""What many pages ask for at once is read once: a hundred dispatchers hear of one change in the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

KEPT_S = 1.0
MOST_KEPT = 500


@dataclass
class _Kept:
    at: float = 0.0
    answer: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_kept: dict[Hashable, _Kept] = {}
_all = threading.Lock()


def shared(key: Hashable, event: int, read: Callable[[], Any]) -> Any:
    """What `read` answers, or answered in the last second to somebody else who had last heard of the same `event`
    (its id; 0: of none, read anew).

    Hints reach all pages in one order, and each after the commit that it tells of: so whoever heard of this event
    first read no older rows than who hears of it now."""
    if not event:
        return read()
    with _all:
        if len(_kept) >= MOST_KEPT:
            _forget_old()
        kept = _kept.setdefault((key, event), _Kept())
    with kept.lock:
        if time.monotonic() - kept.at > KEPT_S:
            started = time.monotonic()
            kept.answer = read()
            kept.at = started
        return kept.answer


def forget() -> None:
    """Reads anew next time (tests)."""
    with _all:
        _kept.clear()


def _forget_old() -> None:
    past = time.monotonic() - KEPT_S
    for key in [key for key, one in _kept.items() if one.at < past]:
        del _kept[key]
