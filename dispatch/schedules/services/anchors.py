"""Decide where the intervals of a changed schedule start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from dispatch.schedules.models import Schedule
from dispatch.schedules.rules import recurrence


def anchor_after(schedule: Schedule, given: Mapping[str, Any], now: datetime) -> datetime:
    """Return the anchor of the schedule's intervals after a change.

    A new start becomes the anchor; a new interval without a start is anchored now. In another time zone, days and
    longer units keep their time on the clock. Other changes keep the anchor.
    """
    changed = {
        name for name in ("every", "unit", "starts_at") if name in given and getattr(schedule, name) != given[name]
    }
    starts_at: datetime | None = given.get("starts_at", schedule.starts_at)
    if not changed or (changed == {"starts_at"} and starts_at is None):
        zone = given.get("time_zone", schedule.time_zone)
        return _move_wall_clock(schedule.anchor, schedule, zone)
    return starts_at or now


def keep_wall_clock(schedule: Schedule, given: dict[str, Any]) -> dict[str, Any]:
    """Return the values, with the unchanged start of an interval or rule at the same time in a new zone."""
    starts_at = schedule.starts_at
    is_interval = schedule.every is not None and given.get("every", schedule.every) is not None
    is_rule = bool(schedule.rrule and given.get("rrule", schedule.rrule))
    if starts_at is None or not (is_interval or is_rule) or given.get("starts_at", starts_at) != starts_at:
        return given
    zone = given.get("time_zone", schedule.time_zone)
    return {**given, "starts_at": _move_wall_clock(starts_at, schedule, zone)}


def _move_wall_clock(at: datetime, schedule: Schedule, zone: str) -> datetime:
    """Return the moment at which it is the same time on the clock in `zone`.

    Intervals of elapsed time keep the moment.
    """
    if zone == schedule.time_zone or schedule.unit in recurrence.ELAPSED_S:
        return at
    wall = at.astimezone(ZoneInfo(schedule.time_zone)).replace(tzinfo=None)
    return recurrence.localize(wall, zone).astimezone(UTC)
