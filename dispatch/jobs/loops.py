"""What the dispatcher process runs for jobs."""

from __future__ import annotations

from django.conf import settings

from dispatch.core.loops import Loop
from dispatch.jobs import services
from dispatch.jobs.services.auditor import BATCH
from dispatch.jobs.services.state import WAITING_LOOP


def audit() -> float | None:
    """Moves on what stopped moving; again at once while there is a full batch of it."""
    return 0.0 if services.audit() >= BATCH else None


def move_on_waiting() -> None:
    """Looks for lines and free technicians for the jobs that wait for them; woken when an offer ends, and when a
    line is given back."""
    services.move_on_waiting()


def repair_technicians() -> None:
    """Corrects counts that have drifted."""
    services.repair_technicians()


LOOPS = [
    Loop("jobs_auditor", audit, interval_s=settings.AUDITOR_INTERVAL_S, elected=True),
    Loop(WAITING_LOOP, move_on_waiting, interval_s=1.0, elected=True),
    Loop("jobs_technician_repair", repair_technicians, interval_s=60.0, elected=True),
]
