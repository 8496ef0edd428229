"""Loops of the dispatcher process for jobs."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.runtime.loops import Loop
from dispatch.jobs import services, sql
from dispatch.jobs.services.auditor import BATCH
from dispatch.jobs.services.line_wakeups import WAITING_LOOP
from dispatch.jobs.services.notices import NOTICE_LOOP


def audit() -> float | None:
    """Run one pass of the auditor; run again immediately after a full batch."""
    return 0.0 if services.audit() >= BATCH else None


def move_on_waiting() -> None:
    """Withdraw offers of deactivated technicians, and retry jobs that wait for a line or a technician.

    The end of an offer or call wakes this loop while some job waits for a technician or a line.
    """
    services.withdraw_inactive_offers()
    services.move_on_waiting()


def repair_technicians() -> None:
    """Correct the counts of technicians that differ from the jobs."""
    services.repair_technicians()


def advance_notices() -> None:
    """Inform technicians of changes to their jobs. Woken by a notice that cannot be texted."""
    services.advance_due_notices()


def remind_of_jobs() -> None:
    """Remind dispatchers of jobs that were paused for too long or not started in time."""
    services.remind_due_jobs()


LOOPS = [
    Loop(
        "jobs_auditor",
        audit,
        interval_s=settings.AUDITOR_INTERVAL_S,
        elected=True,
        due=sql.MAY_NEED_AUDIT,
        rest_s=20.0,
    ),
    Loop(WAITING_LOOP, move_on_waiting, interval_s=1.0, elected=True, due=sql.IS_JOB_DISPATCHING),
    Loop(NOTICE_LOOP, advance_notices, interval_s=2.0, elected=True, due=sql.IS_NOTICE_DUE),
    Loop("jobs_reminders", remind_of_jobs, interval_s=5.0, elected=True, due=sql.IS_REMINDER_DUE),
    Loop("jobs_technician_repair", repair_technicians, interval_s=60.0, elected=True),
]
