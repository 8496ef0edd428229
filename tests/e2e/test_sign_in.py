"""Signing in by keyboard, on the way to a page."""

import pytest
from playwright.sync_api import Browser, expect

from tests.support import factories as make
from tests.support.factories import PASSWORD
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("path", ["/board/?text=boiler", "/admin/jobs/job/"])
def test_sign_in_leads_to_the_requested_page(app_url: str, chromium: Browser, path: str) -> None:
    person = make.dispatcher(make.organization(), "Dana")
    page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(app_url + path)
    page.get_by_label("Email").fill(person.email)
    page.get_by_label("Password").fill("not this one")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The email or password is wrong.")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(app_url + path)
    page.context.close()
