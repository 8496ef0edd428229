"""Actions on many rows in the admin: how many, and that a locked or deleted row stops none of the others."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dispatch.jobs.admin import bulk_actions
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.core.threads import Elsewhere
from tests.jobs.test_admin import hidden_versions, signed_in, text
from tests.jobs.test_api_jobs import Office
from tests.jobs.test_locked_technician import impatient  # noqa: F401
from tests.support import factories
from tests.support.row_locks import held
from tests.technicians.test_sheets import agree, look

pytestmark = pytest.mark.django_db(transaction=True)

JOBS = "/admin/jobs/job/"
ACTIONS = ("assign_selected", "dispatch_selected_again")


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def browser(office: Office) -> Client:
    return signed_in(office.maria)


def failed_jobs(office: Office, count: int) -> list[Job]:
    """Jobs for which nobody was near, the newest first, as the list shows them. Ann is back at work."""
    Technician.objects.update(on_duty=False)
    jobs = [office.job() for _ in range(count)]
    Technician.objects.update(on_duty=True, max_open_jobs=count)
    return jobs[::-1]


def chosen(action: str, jobs: list[Job]) -> dict[str, Any]:
    return {"action": action, "_selected_action": [job.pk for job in jobs]}


def confirmed(browser: Client, action: str, jobs: list[Job], **entered: Any) -> dict[str, Any]:
    """What the confirmation page sends."""
    sent = chosen(action, jobs)
    return {**sent, **hidden_versions(browser.post(JOBS, sent)), "apply": "1", **entered}


@pytest.mark.parametrize("action", ACTIONS)
def test_more_jobs_than_a_request_can_confirm_are_refused(office, browser, monkeypatch, action):
    monkeypatch.setattr(bulk_actions, "MAX_JOBS", 2)
    jobs = failed_jobs(office, 3)
    everything = {**chosen(action, jobs[:1]), "select_across": "1"}
    said = text(browser.post(JOBS, everything, follow=True))
    assert "Select at most 2 jobs at once" in said
    assert f"#{jobs[0].pk}:" not in said
    assert set(Job.objects.values_list("status", flat=True)) == {"pending"}
    assert len(hidden_versions(browser.post(JOBS, chosen(action, jobs[:2])))) == 2


def test_confirmation_of_the_most_jobs_fits_into_a_request(settings):
    fields_of_a_job, other_fields = 2, 10
    assert fields_of_a_job * bulk_actions.MAX_JOBS + other_fields <= settings.DATA_UPLOAD_MAX_NUMBER_FIELDS


@pytest.mark.parametrize("action", ACTIONS)
def test_locked_job_is_reported_and_the_others_are_changed(office, browser, impatient, action):  # noqa: F811
    locked, other = jobs = failed_jobs(office, 2)
    sent = confirmed(browser, action, jobs, technician=office.ann.pk)
    with held(locked):
        answer = browser.post(JOBS, sent, follow=True)
    assert answer.status_code == 200
    assert f"#{locked.pk}: Someone else is changing this job. Try again in a moment." in text(answer)
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert statuses.pop(locked.pk) == "pending"
    assert statuses[other.pk] in ("assigned", "dispatching")


def test_job_deleted_meanwhile_is_reported_and_the_others_are_changed(office, browser):
    first, deleted, last = jobs = failed_jobs(office, 3)
    sent = confirmed(browser, "assign_selected", jobs, technician=office.ann.pk)
    with held(first):
        answers: list[Any] = []
        request = Elsewhere(lambda: answers.append(browser.post(JOBS, sent, follow=True)))
        request.wait_for_lock()
        deleted.candidates.all().delete()
        Job.objects.filter(pk=deleted.pk).delete()
    request.finish()
    assert f"#{deleted.pk}: This job no longer exists." in text(answers[0])
    assert dict(Job.objects.values_list("pk", "status")) == {first.pk: "assigned", last.pk: "assigned"}


def test_locked_technician_is_reported_and_the_other_rows_are_imported(office, impatient):  # noqa: F811
    admin = factories.browser(factories.admin(office.organization))
    content = f"id,name,phone,zip\n{office.ann.pk},Anna,{office.ann.phone},\n,Ben,+16022550102,85281\n"
    looked = look(admin, content)
    with held(office.ann):
        said = text(agree(admin, looked))
    assert "Row 2, Anna: Someone else is changing this technician. Try again in a moment." in said
    assert "1 added, 0 changed." in said
    assert list(Technician.objects.order_by("name").values_list("name", flat=True)) == ["Ann", "Ben"]
