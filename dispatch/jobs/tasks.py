"""What the RQ workers run. Each is finished at once: what takes time waits in a row, not in a worker."""

from structlog.contextvars import bound_contextvars

from dispatch.jobs import services


def start_job(submission_id: int) -> None:
    """dispatch-queue: a submission becomes a job, and its first technician is called."""
    with bound_contextvars(submission=submission_id):
        services.start_job(submission_id)


def offer_next(job_id: int, token: str) -> None:
    """dispatch-queue: the next technician's turn."""
    with bound_contextvars(job=job_id):
        services.offer_next(job_id, token)


def offer_timed_out(job_id: int, token: str, remaining_technician_ids: list[int]) -> None:
    """dispatch-timeout-queue: an offer's time is up. `remaining_technician_ids` tells a reader of the queue who is
    left; the rows decide."""
    with bound_contextvars(job=job_id):
        services.expire_offer(job_id, token)
