"""Read "on my way" from a technician's text, and postpone the reminder that their job was not started."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple

from dispatch.core.accents import without_accents

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
# "en camino 20", "voy para allá", "llego en 20 minutos": compared without accents.
_MINUTES_IN_SPANISH = r"(?P<{number}>\d{{1,4}})\s*(?P<{unit}>m|mins?|minutos?|h|hrs?|horas?)?"
_ON_THE_WAY_IN_SPANISH = re.compile(
    r"(?:(?:(?:ya\s+)?(?:voy|estoy|salgo)\s+)?(?:en\s+camino|en\s+ruta|para\s+alla)|ya\s+voy)"
    r"(?:[\s,:;.–-]*(?:llego\s+)?(?:en|a\s+las?|aprox)?[\s.:~]*"
    + _MINUTES_IN_SPANISH.format(number="number", unit="unit")
    + r")?[\s.!]*|(?:ya\s+)?llego\s+en\s+"
    + _MINUTES_IN_SPANISH.format(number="arrival", unit="arrival_unit")
    + r"[\s.!]*",
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
    """Return what a text such as "OMW 20" or "en camino, 20 min" says, or None for any other text."""
    if found := _ON_THE_WAY.fullmatch(body.strip()):
        return _with_minutes(found["number"], found["unit"])
    if found := _ON_THE_WAY_IN_SPANISH.fullmatch(without_accents(body.strip())):
        return _with_minutes(found["number"] or found["arrival"], found["unit"] or found["arrival_unit"])
    return None


def _with_minutes(number: str | None, unit: str | None) -> OnTheWay:
    if number is None:
        return OnTheWay(None)
    return OnTheWay(int(number) * (60 if (unit or "").lower().startswith("h") else 1))


def attention_while_on_the_way(due_at: datetime, eta_at: datetime | None, now: datetime) -> datetime:
    """Return when a job that is due to start at `due_at` needs attention if its technician is on the way."""
    return max(due_at, (eta_at or now + LONGEST_TRIP) + ARRIVAL_GRACE)
