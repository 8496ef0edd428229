"""Quiet hours: when a job that can wait calls nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo

# Which jobs wait. Emergencies never do.
OFF, NORMAL, URGENT = "off", "normal", "urgent"
# The most urgent priority that waits (1 is an emergency).
_FIRST_TO_WAIT = {NORMAL: 3, URGENT: 2}
DEFAULT_FROM, DEFAULT_UNTIL = time(22), time(7)

FIELDS = ("quiet_for", "quiet_from", "quiet_until")


@dataclass(frozen=True)
class QuietHours:
    """The quiet hours of every day, in local time. `quiet_for`: off, normal, or urgent (and normal)."""

    quiet_for: str = OFF
    quiet_from: time = DEFAULT_FROM
    quiet_until: time = DEFAULT_UNTIL

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Merge policies field by field.

        The first value in `rows` (the service type's, then the organization's) wins, else the default.
        """
        chosen: dict[str, Any] = {}
        for row in rows:
            for name in FIELDS:
                if row.get(name) not in (None, ""):
                    chosen.setdefault(name, row[name])
        return cls(**chosen)

    def end_for(self, priority: int, now: datetime, zone: str) -> datetime | None:
        """Return when the quiet hours end that hold back a job of this priority now, or None if it need not wait.

        Across a change of the clocks, they end as soon as the local time is no longer within them.
        """
        if priority < _FIRST_TO_WAIT.get(self.quiet_for, 99) or not self._contains(now, zone):
            return None
        local = now.astimezone(ZoneInfo(zone))
        day = local.date() if local.time() < self.quiet_until else local.date() + timedelta(days=1)
        wall = datetime.combine(day, self.quiet_until, tzinfo=ZoneInfo(zone))
        # Twice a year, the wall time comes twice or not at all: take the first moment outside the quiet hours.
        moments = sorted({wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1)})
        at = next((moment for moment in moments if moment > now and not self._contains(moment, zone)), moments[-1])
        while at - timedelta(minutes=1) > max(now, moments[0]) and not self._contains(
            at - timedelta(minutes=1), zone
        ):
            at -= timedelta(minutes=1)
        return at

    def start_of(self, end: datetime, zone: str) -> datetime:
        """Return when the quiet hours began that end at `end`."""
        local = end.astimezone(ZoneInfo(zone))
        day = local.date() if self.quiet_from < self.quiet_until else local.date() - timedelta(days=1)
        return datetime.combine(day, self.quiet_from, tzinfo=ZoneInfo(zone)).astimezone(UTC)

    def _contains(self, moment: datetime, zone: str) -> bool:
        wall = moment.astimezone(ZoneInfo(zone)).time()
        if self.quiet_from <= self.quiet_until:
            return self.quiet_from <= wall < self.quiet_until
        return wall >= self.quiet_from or wall < self.quiet_until
