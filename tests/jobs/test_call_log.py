"""The call log finds the calls of a job, and leads to it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.jobs.models import Job, Offer
from dispatch.telephony.models import Call, CallEvent
from tests.jobs.test_api_jobs import Office
from tests.support import factories

pytestmark = pytest.mark.django_db
LOG = "admin:telephony_call_changelist"


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def browser(office) -> Client:
    client = Client()
    client.force_login(office.maria, backend="django.contrib.auth.backends.ModelBackend")
    return client


def called(office: Office, job: Job) -> Call:
    """The call of an offer of the job that was declined."""
    number = factories.number(office.organization)
    technician = factories.technician(office.organization)
    now = clock.now()
    offer = Offer.objects.create(
        organization=office.organization, job=job, technician=technician, attempt=9, status="declined",
        expires_at=now, settled_at=now,
    )  # fmt: skip
    return Call.objects.create(
        organization=office.organization, purpose="offer", subject_id=offer.pk, account=number.account,
        number=number, pool=number.pool, line_slot=1, pool_slot=1, to_phone=technician.phone,
        from_phone=number.phone, status="completed", ended_at=now, place_by=now + timedelta(minutes=1),
    )  # fmt: skip


def found(browser: Client, **query: str) -> set[int]:
    return {row.pk for row in browser.get(reverse(LOG), query).context["cl"].result_list}


def test_the_calls_of_a_job_are_found_by_its_number(office, browser):
    first, second = called(office, office.job()), called(office, office.job())
    job_id = Offer.objects.get(pk=first.subject_id).job_id
    assert {first.pk, second.pk} <= found(browser)
    assert found(browser, q=f"#{job_id}") == {first.pk}
    assert found(browser, q=f"#{job_id}", status__exact="busy") == set()
    assert found(browser, q=f"#{job_id}", number__id__exact=str(first.number_id)) == {first.pk}
    assert found(browser, q=str(second.to_phone)) == {second.pk}
    for nothing in ("#0", f"#{2**70}"):
        assert found(browser, q=nothing) == set()


def test_a_call_leads_to_its_job_and_shows_every_event_of_the_provider(office, browser):
    call = called(office, office.job())
    for n in range(60):
        CallEvent.objects.create(
            organization=office.organization, call=call, key=f"#{n}", kind="status",
            payload={"CallStatus": "ringing", "SequenceNumber": f"seq{n}"},
        )  # fmt: skip
    page = browser.get(reverse("admin:telephony_call_change", args=[call.pk])).content.decode()
    job_id = Offer.objects.get(pk=call.subject_id).job_id
    assert reverse("admin:jobs_job_change", args=[job_id]) in page
    assert all(f"seq{n}<" in page for n in range(60))


def test_a_job_of_another_organization_finds_nothing(office, browser):
    call = called(office, office.job())
    job_id = Offer.objects.get(pk=call.subject_id).job_id
    stranger = Client()
    stranger.force_login(
        factories.admin(factories.organization()), backend="django.contrib.auth.backends.ModelBackend"
    )
    assert found(stranger, q=f"#{job_id}") == set()
