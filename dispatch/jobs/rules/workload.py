"""When a job occupies its technician, for the limit of open jobs at the same time."""

from __future__ import annotations

from datetime import datetime, timedelta

from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.technicians.rules import JobTime

# The duration of a job if neither it nor its service type has one (minutes).
USUAL_MINUTES = 60


def job_time(window: ArrivalWindow | None, minutes: int | None, now: datetime) -> JobTime:
    """Return when a job that nobody has begun occupies a technician.

    It takes from the earliest arrival until the end of the work of the latest one. A job without an arrival
    window, or after it, takes place now. `minutes`: the expected duration.
    """
    length = timedelta(minutes=minutes or USUAL_MINUTES)
    if window is None:
        return JobTime(now, now + length)
    return JobTime(max(window.start, now), max(window.end, now) + length, is_planned=window.end > now)
