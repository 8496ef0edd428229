"""Models of schedules.

`schedules`: schedules, concurrency limits, calendars and time zones. `runs`: runs, the reports of workers, and who
claims a shard. `bulk_imports`: imports and their errors.
"""

from dispatch.schedules.models.bulk_imports import BulkError, BulkImport, BulkPart
from dispatch.schedules.models.runs import TAKEN, WAITING, Executor, Run, RunReport, RunStatus, ShardLease
from dispatch.schedules.models.schedules import (
    MAX_CONCURRENT_RUNS,
    SHARDS,
    ConcurrencyLimit,
    ExclusionCalendar,
    Missed,
    Overlap,
    Schedule,
    ScheduleFeed,
    Unit,
    ZoneRules,
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
