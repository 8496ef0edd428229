"""What got lost on the way, found again from PostgreSQL alone: messages to workers, messages to the status queue,
and workers that died."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.core.redis import REDIS_ERRORS
from dispatch.core.statements import do, rows
from dispatch.schedules import kinds, metrics, sql
from dispatch.schedules.kinds.base import Assignment, Outcome
from dispatch.schedules.models import Run
from dispatch.schedules.rules.outcomes import FAILED, MOST_LAPSES, SUCCEEDED
from dispatch.schedules.scaling.figures import look
from dispatch.schedules.services.applying import apply
from dispatch.schedules.services.sending import send
from dispatch.schedules.services.working import write

log = structlog.get_logger(__name__)

BATCH = 500
# How long the status queue is given.
STATUS_GRACE_S = 5.0
# Of a message's age as its queue tells it: clocks differ, and a chunk is taken before its rows are.
MARGIN_S = 5.0


def reconcile() -> int:
    """One pass; how many rows it looked after."""
    return apply_unapplied() + find_lapsed() + send_lost()


def apply_unapplied() -> int:
    """Reports whose message to the status queue is late or lost."""
    before = clock.now() - timedelta(seconds=STATUS_GRACE_S)
    ids = [row[0] for row in rows(sql.UNAPPLIED, {"before": before, "limit": BATCH})]
    if not ids:
        return 0
    done = apply(ids)
    metrics.repaired.labels("status").inc(done)
    return done


def find_lapsed() -> int:
    """Runs whose worker died. Was it done? The thing that it created is found by the run's idempotency key: then
    it succeeded. Else it is handed out once more in the same attempt; a second worker that dies of it is a
    failure."""
    found = rows(sql.LAPSED, {"limit": BATCH})
    if not found:
        return 0
    results = _results([row[0] for row in found])
    done = [row for row in found if row[0] in results]
    died_twice = [row for row in found if row[0] not in results and row[4] >= MOST_LAPSES]
    _report([(row, Outcome(SUCCEEDED, results[row[0]])) for row in done])
    _report([(row, Outcome(FAILED, error="Two workers ended while they were at it.")) for row in died_twice])
    settled = {row[0] for row in (*done, *died_twice)}
    again = [row for row in found if row[0] not in settled]
    if again:
        with transaction.atomic():
            given = {"ids": [row[0] for row in again], "epochs": [row[1] for row in again], "now": clock.now()}
            back = rows(sql.ONCE_MORE, {**given, "reason": "Its worker ended while it was at it."})
            send((row[0], row[1], row[2]) for row in back)
    metrics.repaired.labels("lapsed").inc(len(found))
    log.warning("workers ended without a report", runs=len(found), had_done_it=len(done), once_more=len(again))
    return len(found)


def send_lost() -> int:
    """Runs that no worker took, and whose message is in no queue any more: it is sent again, in the same epoch, so
    that a copy that turns up after all does nothing."""
    now = clock.now()
    befores: dict[str, datetime] = {}
    for kind in kinds.all_kinds():
        try:
            seen = look(kind.queue, now)
        except REDIS_ERRORS:
            return 0  # nothing could be sent either
        stale = settings.SCHEDULE_STALE_AFTER_S + (seen.oldest_s + MARGIN_S if seen.waiting else 0.0)
        befores[kind.name] = now - timedelta(seconds=stale)
    return _send_again(befores, now)


def send_again() -> None:
    """Called when Redis was found empty: every message to a worker went with it."""
    now = clock.now()
    while _send_again({kind.name: now for kind in kinds.all_kinds()}, now) == BATCH:
        pass


def _send_again(befores: dict[str, datetime], now: datetime) -> int:
    given = {"kinds": list(befores), "befores": list(befores.values()), "limit": BATCH}
    with transaction.atomic():
        lost = rows(sql.LOST, given)
        if not lost:
            return 0
        do(sql.SENT_AGAIN, {"ids": [row[0] for row in lost], "now": now})
        send((row[0], row[1], row[2]) for row in lost)
    metrics.repaired.labels("message").inc(len(lost))
    log.warning("messages to workers were lost and are sent again", runs=len(lost))
    return len(lost)


def _results(run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """What these runs have created, as far as their kinds can find it."""
    of_kind: dict[str, list[Assignment]] = {}
    for run in Run.objects.filter(pk__in=run_ids).select_related("schedule"):
        of_kind.setdefault(run.kind, []).append(
            Assignment(
                run.pk, run.epoch, run.attempt, run.organization_id, run.schedule_id, run.schedule.name,
                run.trigger_at, run.number, {},
            )
        )  # fmt: skip
    found: dict[int, dict[str, Any]] = {}
    for name, given in of_kind.items():
        found |= kinds.get(name).find(given)
    return found


def _report(ended: Sequence[tuple[tuple[Any, ...], Outcome]]) -> None:
    if ended:
        write(
            [
                [row[0], row[1], o.outcome, None if o.result is None else json.dumps(o.result), o.error, None]
                for row, o in ended
            ]
        )
        apply([row[0] for row, _ in ended])
