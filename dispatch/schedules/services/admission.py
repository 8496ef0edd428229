"""Admit runs to the slots of their concurrency limit: those that have waited longest first.

A run holds a slot while it is in progress or running; the unique constraint `one_run_per_concurrency_slot` backs
that. A due run without a free slot waits as `retrying` without a due time, so no executor looks at it and no
worker holds it. The transaction that ends a run gives its slot to the next one. The reconciler repeats that for
limits with free slots and waiting runs, in case the limit or a waiting run was locked at that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import OperationalError, transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db import lock_waits
from dispatch.core.db.errors import is_lock_timeout
from dispatch.core.db.prepared import execute, fetch_all
from dispatch.core.languages import gettext as _
from dispatch.schedules import kinds, limits_sql, metrics
from dispatch.schedules.models import Run
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services.run_messages import QueuedRun, enqueue_runs

BATCH = 200
# A page counts no more waiting runs than this.
MAX_COUNTED = 10_000


@dataclass(frozen=True)
class LimitUse:
    """How many runs of a key are in progress and how many wait."""

    key: str
    max_runs: int
    running: int
    waiting: int

    @property
    def reason(self) -> str:
        """Return why a run with this key waits."""
        words = _("Waiting for a slot of the key {key}: {running} of {most} in use.")
        return words.format(key=self.key, running=f"{self.running:,}", most=f"{self.max_runs:,}")


def lock_limits(limit_ids: Iterable[int | None]) -> set[int]:
    """Lock these limits until the end of the transaction; return those that are locked.

    Left out are those that do not exist, and those that another transaction keeps locked, so that it delays only
    runs with their keys. The reconciler admits these runs later.
    """
    wanted = {limit_id for limit_id in limit_ids if limit_id is not None}
    if not wanted:
        return set()
    given = {"limits": list(wanted)}
    try:
        with lock_waits.short_wait(lock_waits.LOOP_S):
            rows = fetch_all(limits_sql.LOCK_LIMITS, given)
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        rows = fetch_all(limits_sql.TRY_LOCK_LIMITS, given)
    return {row[0] for row in rows}


def queue_runs(runs: dict[int, int]) -> None:
    """Make these due runs (run id → limit id) wait for a slot. `admit_runs` follows."""
    execute(limits_sql.QUEUE_RUNS, {"ids": list(runs), "limits": list(runs.values())})


def admit_runs(limit_ids: Collection[int], now: datetime, *, entered: Collection[int] = ()) -> int:
    """Give the free slots of these limits, which are locked, to waiting runs; return how many were admitted.

    `entered` are the runs that were queued in this transaction: those without a slot get an event that says so.
    Their messages are sent after the commit.
    """
    if not limit_ids and not entered:
        return 0
    known = [kind.name for kind in kinds.all_kinds()]
    given = {"limits": list(limit_ids), "kinds": known, "entered": list(entered), "now": now}
    admitted = [QueuedRun(*row) for row in fetch_all(limits_sql.ADMIT_RUNS, given)]
    if entered:
        execute(limits_sql.APPEND_WAITS, {"ids": list(entered), "now": now})
    fault_injection.crash_point("schedules.admit.before_commit")
    enqueue_runs(admitted)
    return len(admitted)


def free_slots(limit_ids: Iterable[int | None], now: datetime) -> int:
    """Admit the next runs of limits whose runs have just ended, in the same transaction."""
    return admit_runs(lock_limits(limit_ids), now)


def admit_overlooked() -> int:
    """Admit runs of limits that have both free slots and waiting runs; return how many."""
    found = [row[0] for row in fetch_all(limits_sql.LIMITS_WITH_HEADROOM, {"limit": BATCH})]
    if not found:
        return 0
    with transaction.atomic():
        admitted = free_slots(found, clock.now())
    if admitted:
        metrics.repaired.labels("slot").inc(admitted)
    return admitted


def read_use(limit_ids: Iterable[int | None]) -> dict[int, LimitUse]:
    """Return the use of each of these limits that exists."""
    wanted = {limit_id for limit_id in limit_ids if limit_id is not None}
    given = {"limits": list(wanted), "most": MAX_COUNTED}
    rows = fetch_all(limits_sql.LIMIT_USE, given) if wanted else []
    return {row[0]: LimitUse(*row[1:]) for row in rows}


def explain_wait(run: Run, use: LimitUse | None) -> str:
    """Return why a run waits, in words; `use` is that of its concurrency limit."""
    if run.waiting_for == "concurrency":
        return use.reason if use else ""
    return _(descriptions.WAITS.get(run.waiting_for, ""))
