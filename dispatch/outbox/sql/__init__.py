"""Define the outbox's SQL statements.

Every statement takes the time as %(now)s. Leases are the exception: they use the database's clock, so that the
clocks of router machines need not agree.

Lock order: group rows by id, then messages, then targets by id. Starting an attempt locks targets, then gates by
pool, then its messages. The poller, results and recovery skip locked groups and so never wait for one.
"""

from __future__ import annotations

from dispatch.core.db.prepared import columns, execute, fetch_all, fetch_later, pipeline
from dispatch.outbox.sql.attempts import (
    ADD_ATTEMPTS,
    ADD_GATES,
    CLEAR_FAILURES,
    END,
    LOCK_GATES,
    LOCK_TARGETS,
    PROBE,
    RENEW,
    SAVE_GATES,
    SAVE_TARGETS,
    SLOTS_IN_USE,
    START,
    START_READ,
    UNPROBE,
)
from dispatch.outbox.sql.changes import (
    ADD_MESSAGES,
    APPLY_ACTION,
    LOCK_MESSAGES,
    NEW_IDS,
    OPEN_BY_STATUS,
)
from dispatch.outbox.sql.ordering import (
    ADD_GROUPS,
    CLAIM,
    GROUP_IDS,
    HEADS,
    KEEP_GROUPS,
    LOCK_GROUPS,
    NEXT_WAKE,
    POOLS_OF,
    SAVE_GROUPS,
    TARGET_STATES,
    TRY_LOCK_GROUPS,
    WAITING_GROUPS,
    WAITING_IMMEDIATES,
    heads_of,
)
from dispatch.outbox.sql.recovery import (
    DELETE_EMPTY_GROUPS,
    DELETE_ENDED,
    EXPIRE,
    EXPIRED,
    LAPSED,
    LOCK_IDLE_GROUPS,
    LOCK_LAPSED,
    MISSING_GROUPS,
    QUEUE_LAG,
    QUEUED_BEFORE,
    QUEUED_NOW,
    STALE,
)

__all__ = [
    "ADD_ATTEMPTS",
    "ADD_GATES",
    "ADD_GROUPS",
    "ADD_MESSAGES",
    "APPLY_ACTION",
    "CLAIM",
    "CLEAR_FAILURES",
    "DELETE_EMPTY_GROUPS",
    "DELETE_ENDED",
    "END",
    "EXPIRE",
    "EXPIRED",
    "GROUP_IDS",
    "HEADS",
    "KEEP_GROUPS",
    "LAPSED",
    "LOCK_GATES",
    "LOCK_GROUPS",
    "LOCK_IDLE_GROUPS",
    "LOCK_LAPSED",
    "LOCK_MESSAGES",
    "LOCK_TARGETS",
    "MISSING_GROUPS",
    "NEW_IDS",
    "NEXT_WAKE",
    "OPEN_BY_STATUS",
    "POOLS_OF",
    "PROBE",
    "QUEUED_BEFORE",
    "QUEUED_NOW",
    "QUEUE_LAG",
    "RENEW",
    "SAVE_GATES",
    "SAVE_GROUPS",
    "SAVE_TARGETS",
    "SLOTS_IN_USE",
    "STALE",
    "START",
    "START_READ",
    "TARGET_STATES",
    "TRY_LOCK_GROUPS",
    "UNPROBE",
    "WAITING_GROUPS",
    "WAITING_IMMEDIATES",
    "columns",
    "execute",
    "fetch_all",
    "fetch_later",
    "heads_of",
    "pipeline",
]
