"""Times at which a schedule does not run: the days and intervals of its exclusion calendars.

An entry is [start, end, name]; the end does not belong to it. Both are dates, wall-clock times without a zone, or
moments (ISO 8601). Dates and wall-clock times are in the schedule's zone: a holiday begins at its local midnight.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

Entry = Sequence[str]


@dataclass(frozen=True)
class Exclusions:
    """Merged intervals in UTC, in order, and the names of their calendars."""

    starts: tuple[datetime, ...] = ()
    ends: tuple[datetime, ...] = ()
    names: tuple[str, ...] = ()

    def end_at(self, at: datetime) -> datetime | None:
        """Return when the exclusion ends that contains this moment, or None if the moment is not excluded."""
        place = bisect_right(self.starts, at) - 1
        return self.ends[place] if place >= 0 and at < self.ends[place] else None


NO_EXCLUSIONS = Exclusions()


def resolve_exclusions(entries: Iterable[Entry], names: Iterable[str], localize: Any) -> Exclusions:
    """Return the exclusions of these entries. `localize` resolves a wall-clock time in the schedule's zone."""
    starts: list[datetime] = []
    ends: list[datetime] = []
    for start, end in sorted((_moment(entry[0], localize), _moment(entry[1], localize)) for entry in entries):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        elif start < end:
            starts.append(start)
            ends.append(end)
    return Exclusions(tuple(starts), tuple(ends), tuple(names))


def _moment(text: str, localize: Any) -> datetime:
    if len(text) == 10:
        return localize(datetime.combine(date.fromisoformat(text), datetime.min.time())).astimezone(UTC)
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else localize(at)).astimezone(UTC)
