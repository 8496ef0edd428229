"""The admin's home page shows today's figures of the user's organization only."""

from __future__ import annotations

import pytest
from django.urls import reverse

from dispatch.capacity import services as capacity
from dispatch.capacity.models import ProviderAccount
from dispatch.console import admin_dashboard
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.jobs.models import Job, ServiceType, Submission
from dispatch.telephony.models import Call
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


def test_lines_in_use_are_those_of_numbers_in_use():
    """A paused number has no lines, so its last calls use none."""
    organization = make.organization()
    numbers = [make.number(organization, max_channels=5) for _ in range(2)]
    for number in numbers:
        Call.objects.create(
            organization=organization, purpose="offer", subject_id=number.pk, account=number.account,
            number=number, pool=number.pool, line_slot=1, pool_slot=number.pk, to_phone=make.phone(),
            from_phone=number.phone, status="ringing", place_by=clock.now(), requested_at=clock.now(),
        )  # fmt: skip

    def lines() -> str:
        return next(card.figure for card in admin_dashboard.cards(organization) if card.title == "Lines in use")

    assert lines() == "2 of 10"
    capacity.set_paused(numbers[0], True, actor=SYSTEM)
    assert lines() == "1 of 5"
    ProviderAccount.objects.of(organization).update(is_active=False)
    assert lines() == "0 of 0"
