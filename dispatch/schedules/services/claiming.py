"""The executor's step: takes what is due, decides what becomes of it, and makes the runs that are next, all in one
transaction; the messages leave after its commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock, faults
from dispatch.core.statements import columns, do, rows
from dispatch.schedules import kinds, metrics, sql
from dispatch.schedules.rules import due as rules
from dispatch.schedules.rules.due import Due, Plan, Policy, Verdict, plan
from dispatch.schedules.rules.timing import Timing
from dispatch.schedules.services.sending import send

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Row:
    """A due run and what its schedule says about when; the columns of sql.DUE."""

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
    has_open: bool

    @property
    def timing(self) -> Timing:
        return Timing(
            zone=self.time_zone, trigger_at=self.at, every=self.every, unit=self.unit, anchor=self.anchor,
            cron=self.cron, starts_at=self.starts_at, ends_at=self.ends_at, max_occurrences=self.max_occurrences,
        )  # fmt: skip

    @property
    def policy(self) -> Policy:
        return Policy(self.missed, self.missed_after_s, self.overlap == "allow", self.paused_until)

    @property
    def due(self) -> Due:
        return Due(self.trigger_at, self.number, is_retry=self.status == "retrying")


@dataclass(frozen=True)
class Claimed:
    """How many due runs were found, and how many of them were taken."""

    found: int
    taken: int


def claim(shards: Sequence[int], limit: int | None = None) -> Claimed:
    """Takes a batch of what is due in these shards and hands it to the workers."""
    now = clock.now()
    with transaction.atomic():
        given = {"shards": list(shards), "now": now, "limit": limit or settings.SCHEDULE_BATCH_SIZE}
        found = [_Row(*row) for row in rows(sql.DUE, given)]
        if not found:
            return Claimed(0, 0)
        plans = _plan(found, now)
        taken = [row for row, made in plans if made.verdict is Verdict.RUN]
        _take(taken, now)
        _pass_over(plans, now)
        _let_wait(plans, now)
        _move_on(plans, now)
        faults.point("schedules.claim.before_commit")
        send((row.id, row.epoch + 1, row.kind) for row in taken)
    faults.point("schedules.claim.committed")
    for what in Verdict:
        metrics.claimed.labels(what.value).inc(sum(made.verdict is what for _, made in plans))
    return Claimed(len(plans), len(taken))


def next_due(shards: Sequence[int]) -> datetime | None:
    """When the next run of these shards is due."""
    found: datetime | None = rows(sql.NEXT_DUE, {"shards": list(shards)})[0][0]
    return found


def _plan(found: Sequence[_Row], now: datetime) -> list[tuple[_Row, Plan]]:
    """What becomes of each; a run that is taken here counts as open for the schedule's others of this batch. Runs
    of a kind that this process does not know are left to one that does."""
    opened: set[int] = set()
    plans = []
    for row in found:
        if not kinds.is_known(row.kind):
            continue
        try:
            made = plan(row.timing, row.policy, row.due, now, has_open=row.has_open or row.schedule_id in opened)
        except Exception:  # a zone that is no more, say: it must not stop the others of its batch
            log.exception("when a schedule runs cannot be told, its run is put off", schedule=row.schedule_id)
            made = Plan(Verdict.WAIT, moves_on=False)
        if made.verdict is Verdict.RUN:
            opened.add(row.schedule_id)
        plans.append((row, made))
    return plans


def _take(taken: Sequence[_Row], now: datetime) -> None:
    if taken:
        do(sql.TAKE, {"ids": [row.id for row in taken], "now": now})


def _pass_over(plans: Sequence[tuple[_Row, Plan]], now: datetime) -> None:
    own = [(row.id, made.own.status, made.own.reason) for row, made in plans if made.own]
    _do(sql.PASS_OVER, ("ids", "statuses", "reasons"), own, now)
    others = [
        (
            row.organization_id, row.schedule_id, row.kind, row.shard, passed.number, passed.trigger_at,
            passed.status, passed.reason,
        )
        for row, made in plans
        for passed in made.others
    ]  # fmt: skip
    names = ("organizations", "schedules", "kinds", "shards", "numbers", "triggers", "statuses", "reasons")
    _do(sql.ADD_PASSED, names, others, now)


def _let_wait(plans: Sequence[tuple[_Row, Plan]], now: datetime) -> None:
    waiting = [row.id for row, made in plans if made.verdict is Verdict.WAIT]
    if waiting:
        do(sql.LET_WAIT, {"ids": waiting, "until": now + rules.WAIT})


def _move_on(plans: Sequence[tuple[_Row, Plan]], now: datetime) -> None:
    """The next runs are made, and their schedules say when; those without one end."""
    moving = [(row, made) for row, made in plans if made.moves_on]
    nexts = [
        (row.organization_id, row.schedule_id, row.kind, row.shard, *made.next)
        for row, made in moving
        if made.next
    ]
    _do(sql.ADD_NEXT, ("organizations", "schedules", "kinds", "shards", "numbers", "triggers"), nexts, now)
    _do(
        sql.MOVE_ON,
        ("ids", "numbers", "nexts"),
        [(row.schedule_id, *_stands(row, made)) for row, made in moving],
        now,
    )


def _do(statement: str, names: Sequence[str], values: Sequence[tuple[Any, ...]], now: datetime) -> None:
    """One statement for all of these rows, unless there is none."""
    if values:
        do(statement, {**dict(zip(names, columns(values, len(names)), strict=True)), "now": now})


def _stands(row: _Row, made: Plan) -> tuple[int, datetime | None]:
    """How many occurrences the schedule has had made, and when the next one is."""
    if made.next:
        return made.next
    last = made.others[-1].number if made.others else row.number
    return last or 0, None
