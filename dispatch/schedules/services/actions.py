"""Cancel a run, or retry a failed one."""

from __future__ import annotations

from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.runtime import queues
from dispatch.schedules.models import Overlap, Run, RunStatus, Schedule
from dispatch.schedules.services.results import wake_waiting_runs
from dispatch.schedules.services.schedules import NotInThisStatus, cancel_runs
from dispatch.schedules.services.shards import EXECUTOR

_NOT_STARTED = (RunStatus.RETRYING, RunStatus.IN_PROGRESS)


def cancel_run(run_id: int, *, actor: Actor, note: str = "") -> Run:
    """Cancel a claimed or running run, a run that waits for its retry, or a manual run. Raises NotInThisStatus.

    A running run ends as canceled once its worker has stopped, unless it succeeds before. The next run of a
    schedule cannot be canceled on its own: pause, change or delete the schedule.
    """
    now = clock.now()
    reason = note or mark("Canceled manually.")
    with transaction.atomic():
        run = _locked(run_id)
        is_waiting_manual_run = run.number is None and run.status == RunStatus.SCHEDULED
        if run.status in _NOT_STARTED or is_waiting_manual_run:
            wake_waiting_runs([run.schedule_id], now, without=[run.pk])  # first: runs are locked before limits
            cancel_runs(Run.objects.filter(pk=run.pk), now, actor, reason)
            run.refresh_from_db()
        elif run.status == RunStatus.RUNNING:
            _request_cancellation(run, actor, reason)
        else:
            raise NotInThisStatus(
                _refusal(run, mark("This run is {status}, so it cannot be canceled.")), run_status=str(run.status)
            )
    return run


def _request_cancellation(run: Run, actor: Actor, reason: str) -> None:
    """Record the request, which the run's worker checks; a second request changes nothing."""
    if run.cancel_requested_at is not None:
        return
    run.cancel_requested_at = clock.now()
    run.save(update_fields=["cancel_requested_at"])
    events.append(
        run.organization_id,
        "run.cancel_requested",
        run.pk,
        actor=actor,
        schedule_id=run.schedule_id,
        reason=reason,
    )


def retry_run(run_id: int, *, actor: Actor, note: str = "") -> Run:
    """Retry a permanently failed run now, or after the runs that have not ended if its schedule allows no overlap.

    Raises NotInThisStatus. The idempotency key stays the same, so nothing is created twice.
    """
    now = clock.now()
    with transaction.atomic():
        run = _locked(run_id)
        if run.status != RunStatus.FAILED or run.schedule.status == Schedule.Status.DELETED:
            raise NotInThisStatus(
                _refusal(run, mark("This run is {status}, so it cannot be retried.")), run_status=str(run.status)
            )
        run.status, run.due_at, run.ended_at, run.attempt = RunStatus.RETRYING, now, None, run.attempt + 1
        if run.payload is None:
            run.kind = run.schedule.kind  # the payload is the schedule's as it is now
        run.waiting_for = "" if run.schedule.overlap == Overlap.ALLOW else "earlier"
        run.save(update_fields=["status", "due_at", "ended_at", "attempt", "kind", "waiting_for"])
        events.append(
            run.organization_id, "run.retrying", run.pk, actor=actor, schedule_id=run.schedule_id,
            attempt=run.attempt - 1, note=note, again_at=now.isoformat(),
        )  # fmt: skip
        queues.notify_loop(EXECUTOR)
    return run


def _locked(run_id: int) -> Run:
    """Lock the run's schedule, then the run."""
    schedule_id = Run.objects.values_list("schedule_id", flat=True).get(pk=run_id)
    Schedule.objects.select_for_update(no_key=True).get(pk=schedule_id)
    return Run.objects.select_for_update(no_key=True, of=("self",)).select_related("schedule").get(pk=run_id)


def _refusal(run: Run, words: str) -> str:
    return _(words).format(status=_(run.get_status_display()).lower())
