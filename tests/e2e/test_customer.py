"""A customer's status page updates itself, in real Chromium."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, PublicForm, Submission
from tests.support import factories as make
from tests.support.tenants import tenant
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_status_page_shows_the_technician_without_reload(app_url: str, chromium: Browser) -> None:
    ours = tenant("Alphaville")
    submission, job = ours.row(Submission), ours.row(Job)
    Job.objects.filter(pk=job.pk).update(submission=submission, status="pending", pending_reason="exhausted")
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.clock.install()
    page.goto(app_url + urlsplit(signed_links.status_url(submission)).path)
    expect(page.get_by_role("heading")).to_have_text("A dispatcher is handling your request")
    expect(page.locator("#looks")).to_contain_text("updates every 15 seconds")
    page.evaluate("document.body.dataset.same = 'yes'")

    Job.objects.filter(pk=job.pk).update(status="cancelled")
    page.clock.fast_forward(15_000)
    expect(page.get_by_role("heading")).to_have_text("This request was canceled")
    expect(page.locator("#looks")).to_have_count(0)
    assert page.evaluate("document.body.dataset.same") == "yes"
    context.close()


def test_switching_the_language_keeps_the_form_and_enter_sends_it(app_url: str, chromium: Browser) -> None:
    organization = make.organization("Desert Air", slug="desert-air")
    make.service_type(organization, "drain", name="Drain cleaning")
    PublicForm.objects.create(organization=organization)
    context = chromium.new_context(locale="en-US", viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(f"{app_url}/f/desert-air/")
    page.get_by_label("Your name").fill("Ana Ruiz")
    page.get_by_role("button", name="Español").click()
    expect(page.get_by_label("Su nombre")).to_have_value("Ana Ruiz")
    page.get_by_label("Su nombre").press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "es")
    context.close()
