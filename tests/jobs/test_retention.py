"""Old jobs are deleted, but not while a user reopens them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.jobs import retention, services
from dispatch.jobs.models import Job, Submission
from tests.harness.jobs import JOHN, MARIA, Floor
from tests.jobs.test_actions import assigned_to
from tests.support.row_locks import uncommitted


@pytest.mark.django_db(transaction=True)
def test_job_that_is_reopened_meanwhile_is_kept(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    reopened, old = assigned_to(floor, ann), assigned_to(floor, bob)
    for job in (reopened, old):
        services.complete(job.pk, actor=JOHN)
    clock.travel((retention.JOB_DAYS + 1) * 86_400)
    before = clock.now() - timedelta(days=retention.JOB_DAYS)
    with uncommitted(lambda: services.reopen(reopened.pk, actor=MARIA)):
        assert retention.delete_ended_jobs(floor.organization.pk, before, 10) == 1
    assert Job.objects.get().pk == reopened.pk
    assert Submission.objects.get().pk == reopened.submission_id
