"""Compute the jitter of an occurrence: a delay that spreads the runs of many schedules with the same time.

The delay is a hash of the schedule and the occurrence's time, so each computation returns the same moment.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

MAX_JITTER_S = 86_400
_NONE = timedelta()


def jitter_of(schedule_id: int, at: datetime, jitter_s: int) -> timedelta:
    """Return the delay of the occurrence at `at`: 0 to `jitter_s` seconds, in milliseconds."""
    if not jitter_s:
        return _NONE
    digest = hashlib.sha256(f"{schedule_id}:{at.timestamp():.6f}".encode()).digest()
    return timedelta(milliseconds=int.from_bytes(digest[:8]) % (jitter_s * 1000 + 1))
