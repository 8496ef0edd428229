"""Claim due runs in one transaction: run, skip or defer each, and create the next runs.

Messages to workers are sent after the commit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db.prepared import columns, execute, fetch_all
from dispatch.schedules import kinds, metrics, sql
from dispatch.schedules.exclusion_cache import ExclusionReader
from dispatch.schedules.models import ConcurrencyLimit
from dispatch.schedules.rules import due as rules
from dispatch.schedules.rules.due import Due, Plan, Policy, Verdict, plan_due_run
from dispatch.schedules.rules.jitter import jitter_of
from dispatch.schedules.rules.recurrence import Timing
from dispatch.schedules.services.admission import admit_runs, lock_limits, queue_runs
from dispatch.schedules.services.run_messages import QueuedRun, enqueue_runs
from dispatch.schedules.services.shards import keeper

log = structlog.get_logger(__name__)


# Runs that have been due for longer than this are late.
FRESH = timedelta(seconds=60)
# The time to plan a batch, and to plan the first run of each organization in it.
PLANNING_S, FIRST_TURN_S = 0.5, 2.0


@dataclass(frozen=True)
class _Row:
    """A due run with its schedule's timing and policy; the columns of sql.DUE."""

    id: int
    organization_id: int
    schedule_id: int
    kind: str
    shard: int
    number: int | None
    trigger_at: datetime
    status: str
    due_at: datetime
    epoch: int
    name: str
    time_zone: str
    at: datetime | None
    every: int | None
    unit: str
    anchor: datetime
    cron: str
    starts_at: datetime | None
    ends_at: datetime | None
    max_occurrences: int | None
    missed: str
    missed_after_s: int
    overlap: str
    paused_until: datetime | None
    jitter_s: int
    rrule: str
    exclude_calendars: list[int] | None
    limit_id: int | None
    has_waited: bool
    is_backfill: bool
    has_open: bool

    def timing(self, exclusions: ExclusionReader) -> Timing:
        """Return the schedule's timing, with its exclusions from this reader."""
        return Timing(
            zone=self.time_zone, trigger_at=self.at, every=self.every, unit=self.unit, anchor=self.anchor,
            cron=self.cron, rrule=self.rrule, starts_at=self.starts_at, ends_at=self.ends_at,
            max_occurrences=self.max_occurrences,
            exclusions=exclusions.exclusions_of(self.exclude_calendars, self.time_zone),
        )  # fmt: skip

    @property
    def policy(self) -> Policy:
        return Policy(self.missed, self.missed_after_s, self.overlap, self.paused_until)

    @property
    def due(self) -> Due:
        return Due(
            self.trigger_at,
            self.number,
            is_retry=self.status == "retrying",
            has_waited=self.has_waited,
            is_backfill=self.is_backfill,
            jitter=lambda at: jitter_of(self.schedule_id, at, self.jitter_s),
        )


@dataclass(frozen=True)
class Claimed:
    """The number of due runs that were found and not left for a later pass, and of those that were claimed."""

    found: int
    taken: int


def claim_due_runs(shards: Sequence[int], limit: int | None = None) -> Claimed:
    """Claim a batch of due runs in these shards and enqueue it for the workers."""
    now = clock.now()
    ids = find_due_ids(shards, now, limit or settings.SCHEDULE_BATCH_SIZE)
    if not ids:
        return Claimed(0, 0)
    with transaction.atomic():
        rows = [_Row(*row) for row in fetch_all(sql.LOCK_DUE_RUNS, {"ids": ids, "now": now})]
        if not rows:
            return Claimed(0, 0)
        plans = _plan(rows, now)
        taken = [row for row, plan in plans if plan.verdict is Verdict.RUN]
        _skip_runs(plans, now)
        freed = _defer_runs(plans, now)
        left = _start_runs(taken, freed, now)
        _advance_schedules(plans, now)
        fault_injection.crash_point("schedules.claim.before_commit")
    fault_injection.crash_point("schedules.claim.committed")
    for verdict in Verdict:
        metrics.claimed.labels(verdict.value).inc(sum(plan.verdict is verdict for _, plan in plans))
    return Claimed(len(plans) - left, len(taken) - left)


def find_due_ids(shards: Sequence[int], now: datetime, limit: int) -> list[int]:
    """Return the ids of the next batch of runs: those that have just become due, then late ones.

    Each part is in order of due time. If more may be due, organizations take turns in each part.
    """
    given = {"shards": list(shards), "kinds": _known_kinds()}
    late = now - FRESH
    ids = [pk for (pk,) in fetch_all(sql.DUE_IDS, {**given, "now": now, "late": late, "limit": limit})]
    if len(ids) < limit:
        return ids
    with sql.DUE_INDEX.reading_in_order():
        organizations = sql.DUE_INDEX.find_organizations(now, None, given)
        if len(organizations) == 1:
            return ids
        fresh = sql.DUE_INDEX.find_first_ids(organizations, now, limit, given, since=late)
        places = max(limit // 4, limit - len(fresh))
        return fresh + sql.DUE_INDEX.find_first_ids(organizations, late, places, given)


def next_due(shards: Sequence[int]) -> datetime | None:
    """Return when the next run of these shards is due."""
    next_due: datetime | None = fetch_all(sql.NEXT_DUE, {"shards": list(shards), "kinds": _known_kinds()})[0][0]
    return next_due


def _known_kinds() -> list[str]:
    """Return the kinds of this process: during a rolling upgrade, runs of others are left to newer processes."""
    return [kind.name for kind in kinds.all_kinds()]


def _plan(rows: Sequence[_Row], now: datetime) -> list[tuple[_Row, Plan]]:
    """Plan each due run. A run claimed here counts as open for the schedule's other runs in this batch.

    After PLANNING_S, the remaining runs are left to the next batch: long stretches of frequent schedules take
    time, and this transaction holds the locks of all. The first run of each organization has until FIRST_TURN_S.
    """
    opened: set[int] = set()
    plans: list[tuple[_Row, Plan]] = []
    began = time.monotonic()
    exclusions = ExclusionReader(row.exclude_calendars for row in rows)
    for turn, row in _take_turns(rows, now):
        if plans and time.monotonic() - began > (PLANNING_S if turn else FIRST_TURN_S):
            break
        try:
            has_open = row.has_open or row.schedule_id in opened
            plan = plan_due_run(row.timing(exclusions), row.policy, row.due, now, has_open=has_open)
        except Exception:  # such as an unknown time zone: it must not block the other runs of its batch
            log.exception("run_planning_failed", schedule=row.schedule_id)
            plan = Plan(Verdict.DEFER, advances=False)
        if plan.verdict is Verdict.RUN:
            opened.add(row.schedule_id)
        plans.append((row, plan))
    return plans


def _take_turns(rows: Sequence[_Row], now: datetime) -> list[tuple[int, _Row]]:
    """Return the first run of each organization, then the second of each, with the number of the turn from 0.

    The order within an organization stays. In each turn, runs that have just become due come before late ones.
    """
    turns: defaultdict[int, Iterator[int]] = defaultdict(count)
    placed = [(next(turns[row.organization_id]), row) for row in rows]
    return sorted(placed, key=lambda entry: (entry[0], entry[1].due_at <= now - FRESH))


def _start_runs(taken: Sequence[_Row], freed: Sequence[int], now: datetime) -> int:
    """Claim these runs and enqueue them for the workers; those with a concurrency limit queue for its slots first.

    `freed`: limits whose runs have been canceled. Return how many runs were left for a later pass: manual runs
    whose limit another transaction has locked, perhaps to delete it. A schedule's limit cannot be deleted.
    """
    locked = lock_limits([*freed, *(row.limit_id for row in taken)])
    busy = {row.limit_id for row in taken if row.limit_id is not None} - locked
    if busy:
        busy = set(ConcurrencyLimit.objects.filter(pk__in=busy).values_list("pk", flat=True))
    left = {row.id for row in taken if row.limit_id in busy and row.number is None}
    queued = {
        row.id: row.limit_id
        for row in taken
        if row.limit_id is not None and row.limit_id in locked | busy and row.id not in left
    }
    free = [row for row in taken if row.id not in queued and row.id not in left]
    if free:
        execute(sql.CLAIM, {"ids": [row.id for row in free], "now": now})
        enqueue_runs(QueuedRun(row.id, row.epoch + 1, row.kind, row.organization_id) for row in free)
    if queued:
        queue_runs(queued)
    admit_runs(locked, now, entered=list(queued))
    return len(left)


def _skip_runs(plans: Sequence[tuple[_Row, Plan]], now: datetime) -> None:
    own = [
        (
            row.id,
            plan.own.status,
            plan.own.reason,
            plan.own.count,
            plan.own.last_at if plan.own.count > 1 else None,
        )
        for row, plan in plans
        if plan.own
    ]
    _execute_for_rows(sql.SKIP_RUNS, ("ids", "statuses", "reasons", "counts", "lasts"), own, now)
    passed = [
        (
            row.organization_id, row.schedule_id, row.kind, row.shard, plan.passed.number, plan.passed.trigger_at,
            plan.passed.status, plan.passed.reason, plan.passed.count,
            plan.passed.last_at if plan.passed.count > 1 else None,
        )
        for row, plan in plans
        if plan.passed
    ]  # fmt: skip
    names = ("organizations", "schedules", "kinds", "shards", "numbers", "triggers", "statuses", "reasons",
             "counts", "lasts")  # fmt: skip
    _execute_for_rows(sql.ADD_SKIPPED, names, passed, now)


def _defer_runs(plans: Sequence[tuple[_Row, Plan]], now: datetime) -> list[int]:
    """Defer the runs that wait for earlier ones, and cancel the earlier ones where the schedules say so.

    Return the concurrency limits of the canceled ones.
    """
    freed: list[int] = []
    following = {row.id: row.schedule_id for row, plan in plans if plan.cancels_others}
    open_schedules: set[int] = set()
    if following:
        given = {"schedules": list(set(following.values())), "ids": list(following), "now": now}
        canceled = fetch_all(sql.CANCEL_OTHERS, {**given, "reason": "A later run of its schedule replaced it."})
        freed = [row[0] for row in canceled]
        open_schedules = {row[0] for row in fetch_all(sql.STILL_OPEN, given)}
    by_until: dict[datetime, list[int]] = defaultdict(list)
    for row, plan in plans:
        if plan.verdict is Verdict.DEFER and not plan.cancels_others:
            by_until[now + rules.DEFERRAL].append(row.id)
        elif plan.verdict is Verdict.DEFER:
            is_open = row.schedule_id in open_schedules
            by_until[now + rules.CANCEL_RECHECK if is_open else now].append(row.id)
    for until, ids in by_until.items():
        execute(sql.DEFER_RUNS, {"ids": ids, "until": until})
    return freed


def _advance_schedules(plans: Sequence[tuple[_Row, Plan]], now: datetime) -> None:
    """Create the next runs and update their schedules; schedules without a next run end."""
    moving = [(row, plan) for row, plan in plans if plan.advances]
    nexts = [
        (
            row.organization_id, row.schedule_id, row.kind, row.shard, *plan.next,
            plan.next[1] + jitter_of(row.schedule_id, plan.next[1], row.jitter_s),
        )
        for row, plan in moving
        if plan.next
    ]  # fmt: skip
    _execute_for_rows(
        sql.ADD_NEXT, ("organizations", "schedules", "kinds", "shards", "numbers", "triggers", "dues"), nexts, now
    )
    _execute_for_rows(
        sql.ADVANCE_SCHEDULES,
        ("ids", "numbers", "nexts"),
        [(row.schedule_id, *_next_occurrence(row, plan)) for row, plan in moving],
        now,
    )


def _execute_for_rows(
    statement: str, names: Sequence[str], values: Sequence[tuple[Any, ...]], now: datetime
) -> None:
    """Execute one statement for all of these rows, if there are any."""
    if values:
        execute(statement, {**dict(zip(names, columns(values, len(names)), strict=True)), "now": now})


def _next_occurrence(row: _Row, plan: Plan) -> tuple[int, datetime | None]:
    """Return how many occurrences the schedule has, and when the next one is due."""
    if plan.next:
        return plan.next
    skipped = plan.passed or plan.own
    return (skipped.last_number if skipped else row.number) or 0, None


# Prevents a busy loop.
MIN_PAUSE_S = 0.001
# Pause while all overdue runs are locked by other transactions.
LOCKED_PAUSE_S = 0.1


def run_executor_step() -> float | None:
    """Claim once; return the seconds until the next run is due, at most the interval.

    0 means that more may be due now; None means the interval.
    """
    shards = keeper.held()
    if not shards:
        return None
    began = clock.now()
    done = claim_due_runs(shards)
    if done.found:
        return 0.0
    at = next_due(shards)
    if at is None:
        return None
    now = clock.now()
    if at <= began:
        return LOCKED_PAUSE_S
    return min(max((at - now).total_seconds(), MIN_PAUSE_S), settings.SCHEDULE_POLL_INTERVAL_S)
