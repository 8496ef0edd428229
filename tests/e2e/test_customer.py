"""A customer's status page brings in news by itself, in real Chromium."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from dispatch.jobs import links
from dispatch.jobs.models import Job, Submission
from tests.tenants import tenant
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_the_status_page_tells_who_comes_without_being_loaded_again(app_url: str, chromium: Browser) -> None:
    ours = tenant("Alphaville")
    submission, job = ours.row(Submission), ours.row(Job)
    Job.objects.filter(pk=job.pk).update(submission=submission, status="pending", pending_reason="exhausted")
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.clock.install()
    page.goto(app_url + urlsplit(links.status_url(submission)).path)
    expect(page.get_by_role("heading")).to_have_text("A dispatcher is taking care of your request")
    expect(page.locator("#looks")).to_contain_text("looks for news every 15 seconds")
    page.evaluate("document.body.dataset.same = 'yes'")

    Job.objects.filter(pk=job.pk).update(status="cancelled")
    page.clock.fast_forward(15_000)
    expect(page.get_by_role("heading")).to_have_text("This request was cancelled")
    expect(page.locator("#looks")).to_have_count(0)
    assert page.evaluate("document.body.dataset.same") == "yes"
    context.close()
