"""Provide the admin pages for schedules, runs, imports, concurrency limits, exclusion calendars and feeds."""

from __future__ import annotations

from dispatch.schedules.admin.bulk_imports import BulkImportAdmin
from dispatch.schedules.admin.calendars import ExclusionCalendarAdmin
from dispatch.schedules.admin.concurrency_limits import ConcurrencyLimitAdmin
from dispatch.schedules.admin.feeds import ScheduleFeedAdmin
from dispatch.schedules.admin.runs import RunAdmin
from dispatch.schedules.admin.schedules import ScheduleAdmin

__all__ = [
    "BulkImportAdmin",
    "ConcurrencyLimitAdmin",
    "ExclusionCalendarAdmin",
    "RunAdmin",
    "ScheduleAdmin",
    "ScheduleFeedAdmin",
]
