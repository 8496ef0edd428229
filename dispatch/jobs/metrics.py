"""The figures of jobs at /metrics."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count, Min
from prometheus_client import Counter

from dispatch.core import clock
from dispatch.core.metrics import Samples, gauge
from dispatch.jobs.models import Job, Offer, Submission

# The auditor moves on whatever is later than this within 30 seconds of it.
LATE = timedelta(seconds=30)

offers = Counter("dispatch_offers_settled_total", "Offers that ended, by what came of them.", ["outcome"])


@gauge("dispatch_jobs_open", "Jobs that have not ended, by status.", ("status",))
def jobs_open() -> Samples:
    counted = (
        Job.objects.filter(status__in=("dispatching", "pending", "assigned")).order_by().values_list("status")
    )
    found = dict(counted.annotate(count=Count("pk")))
    return [((status,), found.get(status, 0)) for status in ("dispatching", "pending", "assigned")]


@gauge("dispatch_jobs_overdue", "Jobs whose next action passed more than 30 seconds ago: nobody moves them on.")
def jobs_overdue() -> Samples:
    late = Job.objects.filter(status=Job.Status.DISPATCHING, next_action_at__lt=clock.now() - LATE)
    return [((), late.count())]


@gauge("dispatch_jobs_oldest_pending_seconds", "How long the oldest pending job has waited for a dispatcher.")
def oldest_pending() -> Samples:
    since = Job.objects.filter(status=Job.Status.PENDING).aggregate(first=Min("waiting_since"))["first"]
    return [((), _age(since))]


@gauge("dispatch_submissions_not_started", "Submissions that should have become a job 30 seconds ago.")
def submissions_not_started() -> Samples:
    late = Submission.objects.filter(status=Submission.Status.RECEIVED, next_start_at__lt=clock.now() - LATE)
    return [((), late.count())]


@gauge("dispatch_offers_open", "Offers that wait for an answer.")
def offers_open() -> Samples:
    return [((), Offer.objects.filter(status=Offer.Status.PENDING).count())]


def _age(since: datetime | None) -> float:
    return (clock.now() - since).total_seconds() if since else 0.0
