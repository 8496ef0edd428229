"""Provide the schedule in Redis as Python functions: due leads, ready leads, and the batches that hold them.

Updates are sent after the commit of the rows that they reflect. If Redis is unavailable, the failure is logged and
counted, and the reconciler sends the updates later.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog
from django.conf import settings

from dispatch.capacity import redis_scripts as capacity_scripts
from dispatch.capacity.bulk import PoolLimits
from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import LEADS, REDIS_ERRORS, CircuitOpen, Script, client, key
from dispatch.core.runtime.queues import notification_channel
from dispatch.leads import counters, redis_scripts

log = structlog.get_logger(__name__)

PROMOTER = "leads_promoter"
PURPOSE = "lead"
CHUNK = 1000
# Seconds until a pool without a free line is checked again, by a single dialer, unless a line becomes free before.
# Otherwise thousands of busy pools would keep Redis busy.
BLOCKED_S = 2.0


class NotReady(Exception):
    """Redis has lost its generation and is being rebuilt."""

    def __str__(self) -> str:
        return "Redis is empty, and the dispatcher has not rebuilt the schedule yet."


# The exceptions that mean that the schedule is unavailable.
UNAVAILABLE: tuple[type[Exception], ...] = (*REDIS_ERRORS, NotReady)


class ScheduleEntry(NamedTuple):
    """A lead in the schedule: `attempt` is due at `due_ms` (Unix milliseconds)."""

    pool_id: int
    lead_id: int
    attempt: int
    due_ms: int

    @property
    def member(self) -> str:
        return f"{self.pool_id}:{self.lead_id}:{self.attempt}"


class Reservation(NamedTuple):
    """A ready lead with the line that was reserved for it; `batch` holds it until it is completed."""

    member: str
    lead_id: int
    attempt: int
    due_ms: int
    number_id: int
    line_slot: int
    pool_slot: int
    batch: str


class RebuildSpread(NamedTuple):
    """How the last rebuild spread the overdue leads: how many, from `began_ms` (Unix ms) over `window_ms`."""

    began_ms: int
    window_ms: int
    overdue: int

    def position_ms(self, number: int) -> int:
        """Return the time (Unix ms) of the overdue lead with this number, from 0."""
        return self.began_ms + self.window_ms * min(number, self.overdue) // max(self.overdue, 1)


class ClaimOutcome(NamedTuple):
    """The result of a reservation: called, gone, again, later, early or asked (see `redis_scripts.COMPLETE`)."""

    batch: str
    member: str
    what: str
    moment_ms: int = 0
    goes_on_as: str = ""


def to_ms(moment: datetime) -> int:
    """Convert to Unix milliseconds, rounded up, so that nothing starts early."""
    return math.ceil(moment.timestamp() * 1000)


def base_key() -> str:
    """Return the prefix of the leads' keys."""
    return key("leads")


def wakeup_channel() -> str:
    """Return the pub/sub channel that wakes dialers."""
    return key("leads", "bell")


def run_script(script: Script, args: Sequence[Any]) -> Any:
    """Run the script and return its reply. Raises NotReady, or any of REDIS_ERRORS."""
    keys = [generation.key_name(), capacity_scripts.base_key(), base_key()]
    answer = script(keys, list(args), client(LEADS))
    if answer == generation.NOT_READY:
        raise NotReady
    return answer


# --- Synchronize with the rows


def enqueue(entries: Sequence[ScheduleEntry]) -> bool:
    """Schedule the entries, or move them if they are scheduled. Call it after the commit.

    Returns False if Redis is unavailable; the reconciler schedules them later.
    """
    try:
        sync_entries(entries)
    except RedisUnavailable:
        return False
    counters.scheduled.inc(len(entries))
    return True


def dequeue(members: Sequence[str]) -> None:
    """Remove the members from the schedule and the ready queues.

    A member that remains, because Redis is unavailable, is rejected when it is claimed.
    """
    try:
        _run_if_available(redis_scripts.UNSCHEDULE, members)
    except RedisUnavailable:
        return


def notify_dialers(pool_ids: Iterable[int]) -> None:
    """Notify the dialers of free lines in these pools, which are ready again at once."""
    try:
        run_script(redis_scripts.LINES_FREED, [wakeup_channel(), *pool_ids])
    except UNAVAILABLE as error:
        log.debug("dialers_not_notified", error=str(error))


class RedisUnavailable(Exception):
    """Redis is unavailable, or flushed and not yet rebuilt."""


def sync_entries(entries: Sequence[ScheduleEntry]) -> int:
    """Schedule or move the entries, and return how many are new. Raises RedisUnavailable."""
    added = 0
    for chunk in _chunks(entries):
        args: list[Any] = [notification_channel(), PROMOTER]
        for entry in chunk:
            args += (entry.due_ms, entry.member)
        added += _run_if_available(redis_scripts.SCHEDULE, args)
    return added


def sync_missing(page: str) -> int:
    """Schedule the entries of a page that are missing from Redis, and return how many.

    The page is text, as `sql.PAGE_OF_DUE` returns it. Raises RedisUnavailable.
    """
    return _run_if_available(redis_scripts.SCHEDULE_MISSING, [notification_channel(), PROMOTER, page])


def _run_if_available(script: Script, args: Sequence[Any]) -> int:
    try:
        return int(run_script(script, args))
    except UNAVAILABLE as error:
        counters.unscheduled.inc()
        if not isinstance(error, CircuitOpen):
            log_unavailable("leads_not_scheduled", error)
        raise RedisUnavailable from error


def log_unavailable(event: str, error: Exception) -> None:
    """Log that Redis can't be used: a warning, unless it is only not rebuilt yet, as at the first start."""
    log.log(logging.INFO if isinstance(error, NotReady) else logging.WARNING, event, error=str(error))


# --- For the promoter and the dialers. All raise NotReady and REDIS_ERRORS.


def promote_due(most: int) -> tuple[int, float | None]:
    """Make up to `most` leads ready that are due within LEADS_AHEAD_S.

    Returns (how many, seconds until the next lead is due; None if there is none).
    """
    ahead_ms = int(settings.LEADS_AHEAD_S * 1000)
    count, next_us = run_script(redis_scripts.PROMOTE, [clock.offset_ms(), most, wakeup_channel(), ahead_ms])
    return int(count), (None if next_us < 0 else next_us / 1e6)


def ready_pools() -> list[int]:
    """Return the pools whose ready queues may contain leads, without those that had no free line a moment ago."""
    return sorted(map(int, run_script(redis_scripts.READY_POOLS, [clock.offset_ms()])))


def new_batch(worker: str) -> str:
    """Return a new name under which the worker may reserve a batch."""
    return f"{worker}:{uuid.uuid4().hex[:12]}"


def reserve(batch: str, most: int, limits: PoolLimits) -> tuple[list[Reservation], str, float]:
    """Reserve ready leads of the pool, each with a line, for LEADS_CLAIM_LEASE_S.

    Returns (reservations, why there are no more, seconds until a retry makes sense). A repeated call for the same
    batch returns the same reservations.
    """
    lease_ms = int(settings.LEADS_CLAIM_LEASE_S * 1000)
    blocked_ms = int(BLOCKED_S * 1000)
    answer = run_script(
        redis_scripts.RESERVE, [clock.offset_ms(), batch, lease_ms, most, blocked_ms, *limits.arguments(PURPOSE)]
    )
    reservations = []
    for i in range(2, len(answer), 5):
        member = answer[i].decode()
        _, lead_id, attempt = member.split(":")
        number_id, line_slot, pool_slot = map(int, answer[i + 2 : i + 5])
        due_ms = int(float(answer[i + 1]))
        reservations.append(
            Reservation(member, int(lead_id), int(attempt), due_ms, number_id, line_slot, pool_slot, batch)
        )
    return reservations, answer[0].decode(), int(answer[1]) / 1000


def complete_reservations(outcomes: Iterable[ClaimOutcome]) -> None:
    """Complete reservations with their outcomes.

    Reservations with a pending pre-check are held for LEADS_QUESTION_LEASE_S from now.
    """
    args: list[Any] = [
        clock.offset_ms(),
        notification_channel(),
        PROMOTER,
        int(settings.LEADS_QUESTION_LEASE_S * 1000),
    ]
    now_ms = to_ms(clock.now())
    for outcome in outcomes:
        if outcome.what == "early":
            args += outcome._replace(moment_ms=max(0, outcome.moment_ms - now_ms))
        else:
            args += outcome
    if len(args) > 4:
        run_script(redis_scripts.COMPLETE, args)


def heartbeat(worker: str) -> None:
    """Record the dialer's heartbeat."""
    run_script(redis_scripts.HEARTBEAT, [clock.offset_ms(), worker])


def deregister(worker: str) -> None:
    """Deregister a stopping dialer. The leads that it still holds are ready again."""
    run_script(redis_scripts.DEREGISTER, [worker, wakeup_channel()])


def reap(dead_after_s: float) -> tuple[int, int]:
    """Requeue the leads of batches whose lease has ended. Return (dialers without a heartbeat, leads)."""
    dead, requeued = run_script(
        redis_scripts.REAP, [clock.offset_ms(), int(dead_after_s * 1000), wakeup_channel()]
    )
    return int(dead), int(requeued)


def swept_generation() -> str | None:
    """Return the generation of Redis in which the whole backlog was last compared with the schedule."""
    value: Any = client(LEADS).get(f"{base_key()}:swept")
    return value.decode() if value else None


def set_swept_generation(current: str) -> None:
    """Record that the whole backlog was compared with the schedule in that generation of Redis."""
    client(LEADS).set(f"{base_key()}:swept", current)


def rebuild_spread() -> RebuildSpread | None:
    """Return how the last rebuild spread the overdue leads; None if there was none."""
    value: Any = client(LEADS).get(f"{base_key()}:spread")
    return RebuildSpread(*map(int, value.split())) if value else None


def set_rebuild_spread(spread: RebuildSpread) -> None:
    """Record how a rebuild spreads the overdue leads, for those that it does not schedule itself."""
    client(LEADS).set(f"{base_key()}:spread", " ".join(map(str, spread)))


def clear() -> None:
    """Delete the leads' keys before a rebuild."""
    names = list(client(LEADS).scan_iter(match=f"{base_key()}:*", count=1000))
    for start in range(0, len(names), CHUNK):
        client(LEADS).unlink(*names[start : start + CHUNK])


def rebuild_schedule(entries: Sequence[ScheduleEntry]) -> None:
    """Add entries to a schedule that has no generation yet. Only the rebuilding process may call it.

    Raises any of REDIS_ERRORS.
    """
    for chunk in _chunks(entries):
        client(LEADS).zadd(f"{base_key()}:schedule", {entry.member: entry.due_ms for entry in chunk})


def _chunks(entries: Sequence[ScheduleEntry]) -> Iterator[Sequence[ScheduleEntry]]:
    return (entries[start : start + CHUNK] for start in range(0, len(entries), CHUNK))
