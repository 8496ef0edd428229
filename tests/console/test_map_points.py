"""The points of the map: those of the organization, with a constant number of statements."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import Organization
from dispatch.console.board import map_data
from dispatch.console.board.filters import Filters
from dispatch.core import clock, languages
from dispatch.jobs.models import Job, Offer
from tests.harness.jobs import started_job
from tests.support import factories as make

pytestmark = pytest.mark.django_db


def assigned_job(organization: Organization, service: Any) -> Job:
    job = started_job(organization, service)
    technician = make.technician(organization)
    Job.objects.filter(pk=job.pk).update(status="assigned", technician=technician, lat=33.4, lng=-112.0)
    return job


def count_statements(organization: Organization) -> int:
    with CaptureQueriesContext(connection) as statements:
        data = map_data.load_map_data(organization, Filters(), None, map_data.MAX_GROUPED)
        map_data.build_points(data)
    return len(statements)


def test_more_jobs_need_no_more_statements() -> None:
    organization = make.organization()
    service = make.service_type(organization)
    assigned_job(organization, service)
    before = count_statements(organization)
    for _ in range(3):
        assigned_job(organization, service)
    assert count_statements(organization) == before


def test_states_of_calls_are_in_the_users_language() -> None:
    organization = make.organization()
    job = assigned_job(organization, make.service_type(organization))
    ringing = {"status": "pending", "ringing_since": clock.now()}
    for attempt, fields in enumerate(({"status": "declined"}, ringing), start=1):
        Offer.objects.create(
            organization=organization, job=job, technician=make.technician(organization), attempt=attempt,
            expires_at=clock.now(), **fields,
        )  # fmt: skip
    data = map_data.load_map_data(organization, Filters(), job, map_data.MAX_GROUPED)
    with languages.override("es"):
        assert [call["words"] for call in map_data.build_points(data)["calls"]] == ["rechazada", "sonando"]


def test_points_of_another_organization_are_not_shown() -> None:
    organization, other = make.organization(), make.organization()
    mine, theirs = (assigned_job(one, make.service_type(one)) for one in (organization, other))
    page = make.browser(make.dispatcher(organization))
    shown = page.get(reverse("console:map_points")).json()
    assert [job["id"] for job in shown["jobs"]] == [mine.pk]
    assert len(shown["technicians"]) == 1
    shown = page.get(reverse("console:map_points"), {"job": theirs.pk}).json()
    assert (shown["job"], [job["id"] for job in shown["jobs"]]) == (None, [mine.pk])
