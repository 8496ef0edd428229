"""What people do with one run: cancel it before it starts, or try a failed one again."""

from __future__ import annotations

from django.db import transaction

from dispatch.core import clock, events, queues
from dispatch.core.events import Actor
from dispatch.schedules.models import Run, RunStatus, Schedule
from dispatch.schedules.services.managing import NotInThisStatus, cancel_runs
from dispatch.schedules.services.shards import EXECUTOR

_NOT_STARTED = (RunStatus.RETRYING, RunStatus.IN_PROGRESS)


def cancel(run_id: int, *, actor: Actor, note: str = "") -> Run:
    """Cancels a run that was taken or waits for its retry. The next run of a schedule is not cancelled by itself:
    pause or delete the schedule, or change when it runs. Raises NotInThisStatus."""
    with transaction.atomic():
        run = _locked(run_id)
        by_hand = run.number is None and run.status == RunStatus.SCHEDULED
        if run.status not in _NOT_STARTED and not by_hand:
            raise NotInThisStatus(_refusal(run, "cancelled"), run_status=str(run.status))
        done = cancel_runs(
            Run.objects.filter(pk=run.pk, status=run.status), clock.now(), actor, note or "Cancelled by hand."
        )
        run.refresh_from_db()
        if not done:
            raise NotInThisStatus(_refusal(run, "cancelled"), run_status=str(run.status))
    return run


def retry(run_id: int, *, actor: Actor, note: str = "") -> Run:
    """Tries a run that failed for good once more, at once. What it created stays the same thing: its idempotency
    key is the run's. Raises NotInThisStatus."""
    now = clock.now()
    with transaction.atomic():
        run = _locked(run_id)
        if run.status != RunStatus.FAILED or run.schedule.status == Schedule.Status.DELETED:
            raise NotInThisStatus(_refusal(run, "tried again"), run_status=str(run.status))
        run.status, run.due_at, run.ended_at, run.attempt = RunStatus.RETRYING, now, None, run.attempt + 1
        run.save(update_fields=["status", "due_at", "ended_at", "attempt"])
        events.append(
            run.organization_id, "run.retrying", run.pk, actor=actor, schedule_id=run.schedule_id,
            attempt=run.attempt - 1, note=note, again_at=now.isoformat(),
        )  # fmt: skip
        queues.wake(EXECUTOR)
    return run


def _locked(run_id: int) -> Run:
    """With its schedule, which is locked first."""
    schedule_id = Run.objects.values_list("schedule_id", flat=True).get(pk=run_id)
    Schedule.objects.select_for_update(no_key=True).get(pk=schedule_id)
    return Run.objects.select_related("schedule").get(pk=run_id)


def _refusal(run: Run, done_to: str) -> str:
    return f"This run is {run.get_status_display().lower()}, so it cannot be {done_to}."
