"""A dispatcher or a client of the API records that a technician is running late, and the customer is informed."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import IllegalTransition, customer_texts
from dispatch.telephony.models import Text
from tests.harness.customer_texts import ALL, Shop, body, story, texts
from tests.harness.jobs import MARIA
from tests.jobs.test_customer_page import Page
from tests.jobs.test_threads import Desk

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


# --- on the board and in the API ---------------------------------------------------------------------------------


def test_panel_has_the_button_with_a_key_and_records_the_delay(desk):
    job = desk.assigned()
    browser = Client()
    browser.force_login(desk.maria, backend="django.contrib.auth.backends.ModelBackend")
    panel = browser.get(reverse("console:board"), {"job": job.pk}).content.decode()
    assert 'id="act-report-late"' in panel
    assert 'Running late <kbd aria-hidden="true">l</kbd>' in panel
    address = reverse("console:act", args=[job.pk, "report-late"])
    asked = browser.get(address).content.decode()
    assert "Records that Ann is running late." in asked.replace("&#x27;", "'")
    assert browser.post(address, {"version": job.version, "minutes": 0}).status_code == 422
    done = browser.post(address, {"version": job.version, "minutes": 25, "note": "flat tire"})
    assert done.status_code == 302
    assert Job.objects.get(pk=job.pk).late_minutes == 25
    assert "Maria Lopez recorded that Ann is running late 25 min (“flat tire”)" in story(job)
    assert "Running late 25 min" in browser.get(reverse("console:board")).content.decode()
    assert browser.post(address, {"version": job.version, "minutes": 30}).status_code == 409


def test_admin_page_of_a_job_has_the_action(desk):
    job = desk.assigned()
    browser = Client()
    browser.force_login(desk.maria, backend="django.contrib.auth.backends.ModelBackend")
    assert "Running late" in browser.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()


def test_api_records_the_delay(desk):
    job = desk.assigned()
    assert "report_late" in desk.api.get(f"jobs/{job.pk}/").json()["actions"]
    done = desk.api.post(f"jobs/{job.pk}/report-late/", {"minutes": 20})
    assert (done.status_code, done.json()["late_minutes"]) == (200, 20)
    for wrong in ({}, {"minutes": 0}, {"minutes": 241}, {"minutes": "soon"}):
        assert desk.api.post(f"jobs/{job.pk}/report-late/", wrong).status_code == 400
    assert desk.api.post(f"jobs/{job.pk}/report-late/", {"minutes": 20, "version": 1}).status_code == 409
    services.mark_started(job.pk, actor=MARIA)
    assert desk.api.post(f"jobs/{job.pk}/report-late/", {"minutes": 20}).status_code == 409
    assert "report_late" not in desk.api.get(f"jobs/{job.pk}/").json()["actions"]


def test_api_of_others_does_not(desk):
    job = desk.assigned()
    assert Desk().api.post(f"jobs/{job.pk}/report-late/", {"minutes": 20}).status_code == 404
    assert Job.objects.get(pk=job.pk).late_minutes is None


def test_delay_is_recorded_only_of_a_technician_who_has_the_job(shop):
    job = shop.job()
    with pytest.raises(IllegalTransition):
        services.report_late(job.pk, 20, actor=MARIA)
    job = shop.assign(job)
    with pytest.raises(ValidationError):
        services.report_late(job.pk, 241, actor=MARIA)
    with pytest.raises(Conflict):
        services.report_late(job.pk, 20, actor=MARIA, version=job.version + 1)


@pytest.mark.parametrize(
    ("actor", "by", "is_notified"),
    [
        (MARIA, "", False),
        (Actor("api_key", 1, "Fleet"), "", True),
        (Actor("technician", 1, "Ann Lee"), "text", True),
    ],
)
def test_dispatchers_are_notified_unless_one_of_them_recorded_it(shop, actor, by, is_notified):
    job = shop.assign(shop.job())
    services.report_late(job.pk, 20, actor=actor, by=by)
    expected = [f"Job {job.pk}: Ann Lee is running late 20 min"] if is_notified else []
    assert shop.notified("job.running_late") == expected


# --- the customer ------------------------------------------------------------------------------------------------


def test_customer_is_texted_and_the_page_says_so(shop):
    job = shop.assign(shop.job())
    services.report_late(job.pk, 20, actor=MARIA)
    assert "Ann is running about 20 minutes late. Details: " in body(job, "running_late")
    assert "Dispatch texted the customer that the technician is running late" in story(job)
    assert "Ann is running about 20 minutes late" in Page(job).says()
    services.report_on_the_way(job.pk, actor=MARIA)
    assert "Ann is on the way" in Page(job).says(), "the newer report counts"


def test_page_shows_a_newer_arrival_time_instead_of_the_delay(shop):
    job = shop.assign(shop.job())
    for eta_minutes in (20, None):
        services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=eta_minutes)
        services.report_late(job.pk, 20, actor=MARIA)
        assert "Ann is running about 20 minutes late" in Page(job).says()
    services.report_on_the_way(job.pk, actor=MARIA)
    assert "Ann is running about 20 minutes late" in Page(job).says(), "no newer time is known"
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=10)
    said = Page(job).says()
    assert "Ann is on the way" in said
    assert "Expected at about" in said
    assert "late" not in said
    services.correct(job.pk, actor=MARIA, correction=services.Correction(), customer_phone="+16025550199")
    assert "Ann is on the way" in Text.objects.get(to_phone="+16025550199").body
    assert Job.objects.get(pk=job.pk).late_minutes == 20, "dispatchers still see the delay"
    services.report_late(job.pk, 15, actor=MARIA)
    assert "Ann is running about 15 minutes late" in Page(job).says()


def test_customer_is_not_texted_unless_the_organization_wants_it():
    shop = Shop(**{**ALL, "sends_running_late": False})
    job = shop.assign(shop.job())
    services.report_late(job.pk, 20, actor=MARIA)
    assert [kind for kind, _ in texts(job)] == ["received", "assigned"]
    assert "running about 20 minutes late" in Page(job).says()


def test_longer_delay_is_texted_again_and_a_repeated_or_shorter_one_is_not(shop):
    job = shop.assign(shop.job())
    for minutes in (20, 20, 15, 60):
        services.report_late(job.pk, minutes, actor=MARIA)
        shop.sent()
    late = Text.objects.filter(purpose="customer", body__contains="minutes late").order_by("pk")
    assert [text.context["late_minutes"] for text in late] == [20, 60]


def test_equal_delay_of_another_technician_is_texted(shop):
    job = shop.assign(shop.job())
    services.report_late(job.pk, 30, actor=MARIA)
    shop.sent()
    shop.assign(job, shop.bob)
    services.report_late(job.pk, 20, actor=MARIA)
    shop.sent()
    late = Text.objects.filter(purpose="customer", body__contains="minutes late").order_by("pk")
    assert [text.context["late_minutes"] for text in late] == [30, 20]


@pytest.mark.parametrize("change", ["started", "given_back", "reassigned"])
def test_delay_that_is_no_longer_true_is_not_texted(shop, change):
    job = shop.assign(shop.job())
    services.report_late(job.pk, 20, actor=MARIA)
    text = Text.objects.get(body__contains="minutes late")
    assert customer_texts.is_current(text)
    if change == "started":
        services.mark_started(job.pk, actor=MARIA)
    elif change == "given_back":
        services.cannot_make_it(job.pk, actor=MARIA)
    else:
        shop.assign(job, shop.bob)
    text.refresh_from_db()
    assert (text.status, customer_texts.is_current(text)) == ("canceled", False)


def test_delay_before_a_newer_arrival_time_is_not_texted(shop):
    job = shop.assign(shop.job())
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=30)
    services.report_late(job.pk, 20, actor=MARIA)
    text = Text.objects.get(body__contains="minutes late")
    services.report_on_the_way(job.pk, actor=MARIA)
    assert customer_texts.is_current(text), "no newer time is known"
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=5)
    assert not customer_texts.is_current(text)
    services.report_late(job.pk, 15, actor=MARIA)
    newest = Text.objects.filter(body__contains="15 minutes late").get()
    assert customer_texts.is_current(newest)


def test_shorter_delay_replaces_one_that_has_not_left(shop):
    job = shop.assign(shop.job())
    services.report_late(job.pk, 40, actor=MARIA)
    services.report_late(job.pk, 10, actor=MARIA)
    assert texts(job)[-2:] == [("running_late", "canceled"), ("running_late", "created")]
    assert "10 minutes late" in body(job, "running_late")


def test_delay_postpones_the_reminder_that_the_work_was_not_started(shop):
    job = shop.assign(shop.job())
    Job.objects.filter(pk=job.pk).update(attention_at=clock.now())
    services.report_late(job.pk, 30, actor=MARIA)
    attention_at = Job.objects.get(pk=job.pk).attention_at
    assert attention_at is not None
    assert attention_at > clock.now()
