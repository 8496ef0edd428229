"""Provide the admin pages for schedules, runs, bulk imports and calendar feeds."""

from __future__ import annotations

from dispatch.schedules.admin.bulk_imports import BulkImportAdmin
from dispatch.schedules.admin.feeds import ScheduleFeedAdmin
from dispatch.schedules.admin.runs import RunAdmin
from dispatch.schedules.admin.schedules import ScheduleAdmin

__all__ = ["BulkImportAdmin", "RunAdmin", "ScheduleAdmin", "ScheduleFeedAdmin"]
