"""Delete ended jobs with their submissions, offers, candidates and conversations after the retention period."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction

from dispatch.core.languages import mark
from dispatch.core.privacy import retention
from dispatch.jobs.models import Job, Submission

JOB_DAYS = 730
# Each job has about a dozen rows in other tables.
MAX_BATCH = 200


def delete_ended_jobs(organization_id: int, before: datetime, limit: int) -> int:
    """Delete jobs that ended before the cutoff, and their submissions.

    Return how many jobs, or `limit` if there may be more. A job that is locked, such as by a user who reopens it,
    is skipped.
    """
    ended = Job.objects.of(organization_id).filter(ended_at__lt=before).order_by("ended_at")
    with transaction.atomic():
        locked = ended.select_for_update(no_key=True, skip_locked=True)
        rows = list(locked.values_list("pk", "submission_id")[: min(limit, MAX_BATCH)])
        Job.objects.filter(pk__in=[pk for pk, _ in rows]).delete()
        Submission.objects.filter(pk__in=[pk for _, pk in rows]).delete()
    return limit if len(rows) == MAX_BATCH else len(rows)


def register() -> None:
    """Register the retention rule. A submission holds its idempotency key."""
    retention.register(
        "jobs",
        JOB_DAYS,
        delete_ended_jobs,
        label=mark("Ended jobs and their forms"),
        shortest_days=settings.IDEMPOTENCY_KEEP_DAYS,
    )
