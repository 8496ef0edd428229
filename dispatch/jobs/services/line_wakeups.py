"""Wake waiting jobs when any user of a line releases it, or when a technician may be free.

A flag in Redis means that some job waits. The first release that finds the flag clears it, records that a line is
free, and wakes the loop of waiting jobs, which sets the flag again while jobs still wait. Therefore the end of a
call costs one Redis command while no job waits, and the loop is not woken more often than it can run. This only
reduces latency: the loop polls every second anyway.

A second flag means that some job waits for a technician with another offer. Each try of such a job sets it again,
and the end of an offer wakes the loop only while it is set. Otherwise each answer would cost a pass of the loop.
"""

from __future__ import annotations

from redis.client import Pipeline

from dispatch.core.redis.after_commit import send_after_commit
from dispatch.core.redis.client import LEADS, REDIS_ERRORS, client, key
from dispatch.core.runtime.queues import notification_channel, notify_loop

WAITING_LOOP = "jobs_waiting"
KEPT_S = 600
# Longer than a job that waits for a technician waits for its next try (`waits.TECHNICIAN_POLL_S`).
TECHNICIAN_KEPT_S = 30
# KEYS: the flag. ARGV: the channel of `notify_loop`, the loop.
_WAKE = "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PUBLISH', ARGV[1], ARGV[2]) end return 0"


def mark_waiting() -> None:
    """Set the flag at commit, because some job waits for a line."""
    _set_after_commit(_line_waiters(), KEPT_S)


def line_freed() -> None:
    """Wake the loop of waiting jobs if the flag is set, because a line was released."""
    try:
        if client(LEADS).getdel(_line_waiters()):
            client(LEADS).set(_line_freed(), 1, ex=KEPT_S)
            notify_loop(WAITING_LOOP)
    except REDIS_ERRORS:
        return


def mark_waiting_for_technician() -> None:
    """Set the flag of the technicians at commit, because some job waits for one."""
    _set_after_commit(_technician_waiters(), TECHNICIAN_KEPT_S)


def offer_closed() -> None:
    """After the commit, wake the loop of waiting jobs if some job waits for a technician."""
    send_after_commit(LEADS, _wake_for_technician, _ignore)


def take_freed_pools() -> bool:
    """Return whether a line was released while jobs waited for one since the last invocation, and reset that."""
    try:
        return bool(client(LEADS).getdel(_line_freed()))
    except REDIS_ERRORS:
        return False


def _set_after_commit(flag: str, kept_s: int) -> None:
    send_after_commit(LEADS, lambda pipe: pipe.set(flag, 1, ex=kept_s), _ignore)


def _wake_for_technician(pipe: Pipeline) -> None:
    pipe.eval(_WAKE, 1, _technician_waiters(), notification_channel(), WAITING_LOOP)


def _ignore(error: Exception) -> None:
    """Do nothing: the loop polls."""


def _line_waiters() -> str:
    return key("jobs", "line-waiters")


def _line_freed() -> str:
    return key("jobs", "line-freed")


def _technician_waiters() -> str:
    return key("jobs", "technician-waiters")
