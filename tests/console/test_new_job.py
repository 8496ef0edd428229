"""A dispatcher enters a request taken by phone."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import geocoding, services
from dispatch.jobs.models import Job, ServiceType, Submission
from tests.console.test_board import HTMX, Desk
from tests.support import factories as make

pytestmark = pytest.mark.django_db
PHONE = "+16025550123"


@pytest.fixture
def desk(browser: Any) -> Desk:
    return Desk(browser)


def entered(desk: Desk, **fields: Any) -> dict[str, Any]:
    """Open the form and return its values as a dispatcher fills them in."""
    page = desk.client.get("/board/new/").content.decode()
    (nonce,) = re.findall(r'name="nonce" value="([^"]+)"', page)
    return {
        "nonce": nonce,
        "customer_phone": "(602) 555-0123",
        "customer_name": "Ida Whitfield",
        "service_type": desk.service.pk,
        "priority": "2",
        "address": f" {make.PHOENIX.address}\r\n",
        "notes": "Gate code 4711",
        "preferred_technician": "",
        **fields,
    }


def facts(desk: Desk, **fields: Any) -> str:
    answer = desk.client.post("/board/new/facts/", entered(desk, **fields), headers=HTMX)
    assert answer.status_code == 200
    return str(answer.content.decode())


def made_job(submission: Submission) -> Job:
    job = services.start_job(submission.pk, place=False)
    assert job is not None
    return job


def test_a_request_taken_by_phone_becomes_a_job(desk):
    carla = desk.technician("Carla")
    answer = desk.client.post("/board/new/", entered(desk, preferred_technician=carla.pk))
    submission = Submission.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/board/new/{submission.pk}/")
    assert (submission.customer_phone, submission.priority, submission.notes) == (PHONE, 2, "Gate code 4711")
    assert submission.address == make.PHOENIX.address
    assert submission.preferred_technician == carla
    received = Event.objects.get(kind="submission.received")
    assert received.actor_label == "Dana"
    assert desk.client.get(answer["Location"])["Location"] == "/board/"
    job = made_job(submission)
    assert desk.client.get(answer["Location"])["Location"] == f"/board/?job={job.pk}"


def test_the_panel_waits_for_the_job_and_then_shows_it(desk):
    desk.technician("Carla")
    answer = desk.client.post("/board/new/", entered(desk), headers=HTMX)
    submission = Submission.objects.get()
    assert f'hx-get="/board/new/{submission.pk}/"' in answer.content.decode()
    assert desk.client.get(f"/board/new/{submission.pk}/", headers=HTMX).status_code == 204
    job = made_job(submission)
    shown = desk.client.get(f"/board/new/{submission.pk}/", headers=HTMX)
    assert shown["HX-Push-Url"] == f"/board/?job={job.pk}"
    assert f'data-job="{job.pk}"' in shown.content.decode()


def test_the_same_form_sent_twice_makes_one_job(desk):
    form = entered(desk)
    first, second = (desk.client.post("/board/new/", form) for _ in range(2))
    assert first["Location"] == second["Location"]
    assert Submission.objects.count() == 1
    changed = desk.client.post("/board/new/", form | {"notes": "No gate code"})
    assert changed.status_code == 409
    assert "already created a job" in changed.content.decode()
    (nonce,) = re.findall(r'name="nonce" value="([^"]+)"', changed.content.decode())
    assert desk.client.post("/board/new/", form | {"notes": "No gate code", "nonce": nonce}).status_code == 302
    assert Submission.objects.count() == 2


def test_a_form_sent_again_shows_its_job_although_its_service_is_off_by_now(desk):
    form = entered(desk)
    made = desk.client.post("/board/new/", form)
    ServiceType.objects.update(is_active=False)
    assert desk.client.post("/board/new/", form)["Location"] == made["Location"]
    assert desk.client.post("/board/new/", entered(desk)).status_code == 422
    for nonce in ("", "x"):
        assert desk.client.post("/board/new/", form | {"nonce": nonce}).status_code == 422
    assert Submission.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("customer_phone", "banana", "Enter a valid phone number, such as"),
        ("customer_name", "", "This field is required."),
        ("service_type", "999999", "Select a valid choice"),
        ("priority", "9", "Select a valid choice"),
        ("address", "  ", "This field is required."),
        ("notes", "x" * 2001, "at most 2000 characters"),
    ],
)
def test_an_error_names_its_field_and_keeps_what_was_entered(desk, field, value, error):
    answer = desk.client.post("/board/new/", entered(desk, **{field: value}), headers=HTMX)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert re.search(rf'id="id_{field}_error"><p>[^<]*{error}', page)
    assert "No job was created" in page
    if field != "customer_name":
        assert "Ida Whitfield" in page
    assert not Submission.objects.exists()


def test_a_known_customer_and_the_technicians_nearby_are_shown(desk):
    earlier = desk.job("completed", customer_phone=PHONE, customer_name="Ida Whitfield")
    desk.job("completed")
    desk.technician("Carla")
    page = facts(desk)
    assert f"#{earlier.pk}" in page
    assert page.count("<li>") == 1
    assert 'data-name="Ida Whitfield"' in page
    assert "1 technician available" in page
    assert "Carla" in page
    assert Submission.objects.count() == Job.objects.count() == 2, "nothing was stored"


def test_before_anything_is_entered_nothing_is_said(desk):
    page = desk.client.post("/board/new/facts/", {"customer_phone": "602"}, headers=HTMX).content.decode()
    assert "technician" not in page
    assert "New customer" not in page


def test_an_address_is_geocoded_once_for_all_changes_of_the_form(desk, monkeypatch):
    asked = []

    def geocode(**given: Any) -> tuple[None, str]:
        asked.append(given["address"])
        return None, "Address not found."

    monkeypatch.setattr(geocoding, "geocode_with_reason", geocode)
    for priority in ("1", "2", "3"):
        assert "Address not found." in facts(desk, address="1 Long Way", priority=priority)
    facts(desk, address="2 Long Way")
    assert asked == ["1 Long Way", "2 Long Way"]


def test_nobody_nearby_and_an_unknown_address_are_said(desk):
    nobody = facts(desk)
    assert "No qualified technician available" in nobody
    day = (clock.now() + timedelta(days=3)).date()
    later = facts(desk, window_day=str(day), window_from="14:00", window_until="16:00")
    assert "No qualified technician available now" in later
    assert "The job will need a dispatcher." in nobody
    assert "will need a dispatcher" not in later, "technicians are chosen in time for the window"
    unknown = facts(desk, address="Nowhere")
    assert "late toned" in unknown
    assert "available" not in unknown


def test_other_organizations_customers_services_and_requests_stay_theirs(desk, browser):
    other = Desk(browser)
    other.job("completed", customer_phone=PHONE, customer_name="Their customer")
    page = facts(desk)
    assert "Their customer" not in page
    theirs = desk.client.post("/board/new/", entered(desk, service_type=other.service.pk), headers=HTMX)
    assert theirs.status_code == 422
    technician = other.technician("Their technician")
    refused = desk.client.post("/board/new/", entered(desk, preferred_technician=technician.pk), headers=HTMX)
    assert refused.status_code == 422
    other.client.post("/board/new/", entered(other))
    assert desk.client.get(f"/board/new/{Submission.objects.latest('pk').pk}/").status_code == 404


def test_only_dispatchers_and_admins_create_jobs(browser):
    assert browser(make.user("Nobody")).get("/board/new/").status_code == 403
    assert browser().get("/board/new/").status_code == 302


def test_the_panel_lists_other_jobs_of_the_customer(desk, browser):
    done = desk.job("completed", customer_phone=PHONE, technician=desk.technician("Carla"))
    open_one, someone_else = desk.job("pending", customer_phone=PHONE), desk.job()
    theirs = Desk(browser).job(customer_phone=PHONE)
    job = desk.job(customer_phone=PHONE)
    page = desk.see(f"/board/jobs/{job.pk}/", headers=HTMX)
    listed = page.split('id="earlier-title"')[1].split("</ul>")[0]
    assert re.findall(r'data-open="(\d+)"', listed) == [str(open_one.pk), str(done.pk)]
    assert "still open" in listed
    assert "Carla" in listed
    assert f'data-open="{someone_else.pk}"' not in page
    assert f'data-open="{theirs.pk}"' not in page
    assert "earlier-title" not in desk.see(f"/board/jobs/{someone_else.pk}/", headers=HTMX)
