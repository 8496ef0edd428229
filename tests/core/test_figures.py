"""Every gauge at /metrics reads current rows, and none fails."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from dispatch.core import clock
from dispatch.core.observability import metrics
from dispatch.jobs.models import Job, Submission
from dispatch.telephony.models import Call
from notifications.models import Alert, Delivery
from tests.support.tenants import Tenant, ours, theirs, world
from tests.support.waiting import PATIENCE

__all__ = ["ours", "theirs", "world"]

pytestmark = pytest.mark.django_db


def figure(name: str, **labels: str) -> float:
    """Return one gauge's value, as it would be scraped now."""
    _, names, read = metrics._gauges[name]
    wanted = tuple(labels[label] for label in names)
    return dict(read()).get(wanted, 0.0)


def test_every_gauge_can_be_read(ours: Tenant) -> None:
    page = Client().get("/metrics").content.decode()
    assert metrics._gauges
    for name, (_, _, read) in metrics._gauges.items():
        list(read())  # the page would count a failure, and continue
        assert f"# HELP {name} " in page, name


def test_gauge_shows_stalled_jobs(ours: Tenant) -> None:
    before = figure("dispatch_jobs_overdue")
    job = Job.objects.filter(pk=ours.row(Job).pk)
    job.update(status="dispatching", pending_reason="", next_action_at=clock.now() - timedelta(minutes=1))
    assert figure("dispatch_jobs_overdue") == before + 1
    assert figure("dispatch_jobs_open", status="dispatching") >= 1
    form = Submission.objects.filter(pk=ours.row(Submission).pk)
    form.update(status="received", next_start_at=clock.now() - timedelta(minutes=1))
    assert figure("dispatch_submissions_not_started") == 1


def test_calls_are_counted_by_purpose_and_status(ours: Tenant) -> None:
    assert figure("dispatch_calls_open", purpose="offer", status="ringing") >= 1
    Call.objects.filter(pk=ours.row(Call).pk).update(
        status="unknown", requested_at=clock.now() - timedelta(seconds=700)
    )
    assert 699 < figure("dispatch_calls_oldest_unknown_seconds") < 700 + PATIENCE


def test_gauge_shows_waiting_alerts(ours: Tenant) -> None:
    now = clock.now()
    Alert.objects.filter(pk=ours.row(Alert).pk).update(
        status="open", created_at=now - timedelta(hours=1), next_action_at=now - timedelta(minutes=2),
        next_repeat_at=now,
    )  # fmt: skip
    assert figure("dispatch_alerts_open") == 1
    assert figure("dispatch_alerts_overdue") == 1
    assert 3599 < figure("dispatch_alerts_oldest_open_seconds") < 3600 + PATIENCE
    Delivery.objects.filter(pk=ours.row(Delivery).pk).update(status="waiting", next_attempt_at=now)
    assert figure("dispatch_deliveries_open", channel="email") == 1


def test_gauge_is_zero_without_workers() -> None:
    assert figure("dispatch_workers", queue="dispatch-queue") == 0
