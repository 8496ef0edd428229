"""Read "on my way" from a technician's text, and postpone the reminder that their job was not started."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

MAX_ETA_MINUTES = 480
# The longest delay that can be reported.
MAX_LATE_MINUTES = 240
# Without an ETA, a trip is expected to take at most this long.
LONGEST_TRIP = timedelta(hours=1)
# After the expected arrival, the work may take this long to start before dispatchers are reminded.
ARRIVAL_GRACE = timedelta(minutes=30)

_ON_THE_WAY = re.compile(
    r"(?:i\s*['’]?\s*a?m\s+)?(?:omw|on\s+(?:my|the)\s+way|en\s*route)"
    r"(?:[\s,:;.–-]*(?:be\s+there\s+)?(?:in|eta|about|approx)?[\s.:~]*"
    r"(?P<number>\d{1,4})\s*(?P<unit>m|mins?|minutes?|h|hrs?|hours?)?)?[\s.!]*",
    re.IGNORECASE,
)


class OnTheWay(NamedTuple):
    """A technician's text that says they are on the way. `minutes` is None without an ETA."""

    minutes: int | None

    @property
    def is_possible(self) -> bool:
        """Whether the ETA is one that can be recorded."""
        return self.minutes is None or 1 <= self.minutes <= MAX_ETA_MINUTES


def read_on_the_way(body: str) -> OnTheWay | None:
    """Return what a text such as "OMW 20" or "on my way, 20 min" says, or None for any other text."""
    found = _ON_THE_WAY.fullmatch(body.strip())
    if found is None:
        return None
    if found["number"] is None:
        return OnTheWay(None)
    is_hours = (found["unit"] or "").lower().startswith("h")
    return OnTheWay(int(found["number"]) * (60 if is_hours else 1))


def attention_while_on_the_way(due_at: datetime, eta_at: datetime | None, now: datetime) -> datetime:
    """Return when a job that is due to start at `due_at` needs attention if its technician is on the way."""
    return max(due_at, (eta_at or now + LONGEST_TRIP) + ARRIVAL_GRACE)
