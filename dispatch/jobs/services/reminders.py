"""Remind dispatchers of jobs that were paused for too long, or not started or completed in time."""

from __future__ import annotations

from django.db import transaction

from dispatch.core import clock
from dispatch.core.db import lock_waits
from dispatch.core.db.isolation import run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.jobs.models import Job
from dispatch.jobs.services import transitions

BATCH = 200
_failed_jobs = RecentlyBlocked(20.0, longest_s=600.0)


def remind_due_jobs() -> int:
    """Append the reminders that are due, once per pause or assignment. Return how many jobs were looked at."""
    due = Job.objects.filter(attention_at__lte=clock.now(), reminded_at=None).order_by("attention_at")
    with lock_waits.limit_lock_waits(lock_waits.LOOP_S):
        return run_unlocked(_remind, due, BATCH, event="job_not_reminded", skipped=_failed_jobs)


@transaction.atomic
def _remind(job_id: int) -> int:
    job = transitions.lock_job(job_id, "technician")
    now = clock.now()
    if job.attention_at is None or job.attention_at > now or job.reminded_at is not None:
        return 1
    job.reminded_at = now
    transitions.save_job(job, visible=False)
    if job.status == Job.Status.DISPATCHING and job.paused_at is not None:
        minutes = int((now - job.paused_at).total_seconds() // 60)
        transitions.append_job_event(job, "job.pause_overdue", minutes=minutes)
    elif job.status == Job.Status.ASSIGNED and job.assigned_at is not None and job.technician is not None:
        minutes = int((now - (job.started_at or job.assigned_at)).total_seconds() // 60)
        transitions.append_job_event(
            job,
            "job.not_started" if job.started_at is None else "job.not_completed",
            minutes=minutes,
            technician_id=job.technician_id,
            technician=job.technician.name,
        )
    return 1
