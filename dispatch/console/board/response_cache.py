"""Cache responses that many pages request at once, because a live update reaches them all at the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

CACHED_S = 1.0
MAX_CACHED = 500


@dataclass
class _CachedResponse:
    at: float = 0.0
    answer: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_cached: dict[Hashable, _CachedResponse] = {}
_all = threading.Lock()


def cached_response(key: Hashable, event: int, read: Callable[[], Any]) -> Any:
    """Return the response that another page with the same last `event` got in the last second, or call `read`.

    `event` is the event's id; 0 always calls `read`. Live updates reach all pages in the same order, each after
    the commit of its event. Therefore the first page that received this event read rows at least as new as this
    page needs.
    """
    if not event:
        return read()
    with _all:
        if len(_cached) >= MAX_CACHED:
            _evict_expired()
        cached = _cached.setdefault((key, event), _CachedResponse())
    with cached.lock:
        if time.monotonic() - cached.at > CACHED_S:
            started = time.monotonic()
            cached.answer = read()
            cached.at = started
        return cached.answer


def reset() -> None:
    """Clear the cache (tests)."""
    with _all:
        _cached.clear()


def _evict_expired() -> None:
    past = time.monotonic() - CACHED_S
    for key in [key for key, cached in _cached.items() if cached.at < past]:
        del _cached[key]
