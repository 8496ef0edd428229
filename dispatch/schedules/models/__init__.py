"""Models of schedules.

`schedules`: schedules and concurrency limits. `runs`: runs and the reports of workers. `bulk_imports`: imports and
their errors. `calendars`: feeds, exclusion calendars and rules of time zones. `executors`: who claims a shard.
"""

from dispatch.schedules.models.bulk_imports import BulkError, BulkImport, BulkPart
from dispatch.schedules.models.calendars import ExclusionCalendar, ScheduleFeed, ZoneRules
from dispatch.schedules.models.executors import Executor, ShardLease
from dispatch.schedules.models.runs import TAKEN, WAITING, Run, RunReport, RunStatus
from dispatch.schedules.models.schedules import (
    MAX_CONCURRENT_RUNS,
    SHARDS,
    ConcurrencyLimit,
    Missed,
    Overlap,
    Schedule,
    Unit,
)

__all__ = [
    "MAX_CONCURRENT_RUNS",
    "SHARDS",
    "TAKEN",
    "WAITING",
    "BulkError",
    "BulkImport",
    "BulkPart",
    "ConcurrencyLimit",
    "ExclusionCalendar",
    "Executor",
    "Missed",
    "Overlap",
    "Run",
    "RunReport",
    "RunStatus",
    "Schedule",
    "ScheduleFeed",
    "ShardLease",
    "Unit",
    "ZoneRules",
]
