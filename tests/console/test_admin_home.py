"""The admin's home page shows today's figures of the user's organization only."""

from __future__ import annotations

import pytest
from django.urls import reverse

from dispatch.jobs.models import Job, ServiceType, Submission
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db


def pending(organization) -> Job:
    """A job of today that nobody accepted."""
    service = ServiceType.objects.of(organization).first() or make.service_type(organization)
    who = {"customer_name": "Ana", "customer_phone": make.phone(), "service_type": service}
    form = Submission.objects.create(organization=organization, status="processed", form={}, **who)
    return Job.objects.create(
        organization=organization, submission=form, status="pending", pending_reason="exhausted", **who
    )


def test_today_in_figures_that_lead_to_their_lists():
    organization, other = make.organization("Main Street"), make.organization("Elsewhere")
    pending(organization)
    for _ in range(3):
        pending(other)
    page = browser(make.dispatcher(organization)).get(reverse("admin:index")).content.decode()
    assert "Today at Main Street" in page
    assert f"{reverse('admin:jobs_job_changelist')}?needs=attention" in page
    assert '<span class="title">Needs attention</span><span class="figure">1</span>' in page
    assert '<span class="title">Jobs today</span><span class="figure">1</span>' in page
    assert "Elsewhere" not in page


def test_a_superuser_without_an_organization_sees_the_list_of_tables():
    page = browser(make.user("Root", is_superuser=True)).get(reverse("admin:index"))
    assert page.status_code == 200
