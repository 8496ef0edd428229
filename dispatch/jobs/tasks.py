"""RQ tasks of jobs. Each is short: waiting happens in rows, not in workers."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.contextvars import bound_contextvars

from dispatch.core.db import lock_waits
from dispatch.core.db.errors import is_lock_timeout
from dispatch.jobs import services

log = structlog.get_logger(__name__)


@contextmanager
def _task_context(**context: object) -> Iterator[None]:
    """Run a task with a short lock timeout. The auditor retries a task that a locked row has blocked."""
    with bound_contextvars(**context), lock_waits.limit_lock_waits(lock_waits.WORKER_S):
        try:
            yield
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            log.warning("task_blocked_by_a_lock")


def start_job(submission_id: int) -> None:
    """Create the submission's job and call the first technician (dispatch-queue)."""
    with _task_context(submission=submission_id):
        services.start_job(submission_id)


def offer_next(job_id: int, token: str) -> None:
    """Offer the job to the next technician (dispatch-queue)."""
    with _task_context(job=job_id):
        services.offer_next(job_id, token)


def offer_timed_out(job_id: int, token: str, remaining_technician_ids: list[int]) -> None:
    """Expire an offer (dispatch-timeout-queue).

    `remaining_technician_ids` only informs people who inspect the queue; the rows decide.
    """
    with _task_context(job=job_id):
        services.expire_offer(job_id, token)


def resume_after_spend_cap(organization_id: int) -> None:
    """Resume the organization's jobs that its spending cap stopped (dispatch-queue)."""
    with _task_context():
        services.resume_after_spend_cap(organization_id)


def resume_after_outage(organization_id: int, limit: int | None = None) -> None:
    """Resume the organization's jobs after a provider outage, at most `limit` (dispatch-queue)."""
    with _task_context():
        services.resume_after_outage(organization_id, limit)
