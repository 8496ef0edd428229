"""Wake waiting jobs when any user of a line releases it, or when a technician may be free.

A flag in Redis means that some job waits. The first release that finds the flag clears it, records that a line is
free, and wakes the loop of waiting jobs, which sets the flag again while jobs still wait. Therefore the end of a
call costs one Redis command while no job waits, and the loop is not woken more often than it can run. This only
reduces latency: the loop polls every second anyway.

A second flag means that some job waits for a technician with another offer. Each try of such a job sets it again,
and the end of an offer wakes the loop only while it is set. Otherwise each answer would cost a pass of the loop.
"""

from __future__ import annotations

from django.db import transaction

from dispatch.core.redis.client import REDIS_ERRORS, client, key
from dispatch.core.runtime.queues import notify_loop

WAITING_LOOP = "jobs_waiting"
KEPT_S = 600
# Longer than a job that waits for a technician waits for its next try (`waits.TECHNICIAN_POLL_S`).
TECHNICIAN_KEPT_S = 30


def mark_waiting() -> None:
    """Set the flag at commit, because some job waits for a line."""
    transaction.on_commit(_mark, robust=True)


def line_freed() -> None:
    """Wake the loop of waiting jobs if the flag is set, because a line was released."""
    try:
        if client().getdel(key("jobs", "line-waiters")):
            client().set(key("jobs", "line-freed"), 1, ex=KEPT_S)
            notify_loop(WAITING_LOOP)
    except REDIS_ERRORS:
        return


def mark_waiting_for_technician() -> None:
    """Set the flag of the technicians at commit, because some job waits for one."""
    transaction.on_commit(_mark_for_technician, robust=True)


def offer_closed() -> None:
    """After the commit, wake the loop of waiting jobs if some job waits for a technician."""
    transaction.on_commit(_wake_for_technician, robust=True)


def take_freed_pools() -> bool:
    """Return whether a line was released while jobs waited for one since the last invocation, and reset that."""
    try:
        return bool(client().getdel(key("jobs", "line-freed")))
    except REDIS_ERRORS:
        return False


def _mark() -> None:
    try:
        client().set(key("jobs", "line-waiters"), 1, ex=KEPT_S)
    except REDIS_ERRORS:
        return


def _mark_for_technician() -> None:
    try:
        client().set(_technician_waiters(), 1, ex=TECHNICIAN_KEPT_S)
    except REDIS_ERRORS:
        return


def _wake_for_technician() -> None:
    try:
        if client().exists(_technician_waiters()):
            notify_loop(WAITING_LOOP)
    except REDIS_ERRORS:
        return


def _technician_waiters() -> str:
    return key("jobs", "technician-waiters")
