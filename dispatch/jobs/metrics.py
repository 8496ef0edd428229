"""Prometheus metrics of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count, Min
from prometheus_client import Counter

from dispatch.core import clock
from dispatch.core.observability.metrics import Samples, gauge
from dispatch.jobs.models import Job, Offer, Submission

# The auditor should advance an overdue job within 30 seconds.
LATE = timedelta(seconds=30)

offers = Counter("dispatch_offers_settled_total", "Closed offers by outcome.", ["outcome"])


@gauge("dispatch_jobs_open", "Open jobs by status.", ("status",))
def jobs_open() -> Samples:
    """Count the open jobs of each status."""
    counted = (
        Job.objects.filter(status__in=("dispatching", "pending", "assigned")).order_by().values_list("status")
    )
    counts = dict(counted.annotate(count=Count("pk")))
    return [((status,), counts.get(status, 0)) for status in ("dispatching", "pending", "assigned")]


@gauge("dispatch_jobs_overdue", "Jobs whose next action is overdue by more than 30 seconds.")
def jobs_overdue() -> Samples:
    """Count the jobs that the auditor should already have advanced."""
    late = Job.objects.filter(status=Job.Status.DISPATCHING, next_action_at__lt=clock.now() - LATE)
    return [((), late.count())]


@gauge("dispatch_jobs_oldest_pending_seconds", "Seconds that the oldest pending job has waited for a dispatcher.")
def oldest_pending() -> Samples:
    """Return the age of the oldest pending job in seconds; 0 if no job is pending."""
    since = Job.objects.filter(status=Job.Status.PENDING).aggregate(first=Min("waiting_since"))["first"]
    return [((), _age(since))]


@gauge("dispatch_submissions_not_started", "Submissions whose start is overdue by more than 30 seconds.")
def submissions_not_started() -> Samples:
    """Count the submissions that should already have become jobs."""
    late = Submission.objects.filter(status=Submission.Status.RECEIVED, next_start_at__lt=clock.now() - LATE)
    return [((), late.count())]


@gauge("dispatch_offers_open", "Offers waiting for an answer.")
def offers_open() -> Samples:
    """Count the pending offers."""
    return [((), Offer.objects.filter(status=Offer.Status.PENDING).count())]


def _age(since: datetime | None) -> float:
    return (clock.now() - since).total_seconds() if since else 0.0
