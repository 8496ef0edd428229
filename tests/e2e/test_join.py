"""A new colleague opens an invitation, corrects mistakes, and joins."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from accounts.models import Membership, User
from tests.accounts.test_invitations import invite, mailed_link
from tests.e2e.test_attention import shot
from tests.support import factories as make
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PASSWORD = "correct horse battery staple"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_a_new_colleague_joins(chromium: Browser, app_url: str, settings, width: int, scheme: str) -> None:
    settings.EMAIL_URL = "smtp://mail.example.com"
    organization = make.organization("Desert Air & Plumbing")
    invite(make.admin(organization, "Ana"), "new@desert.example")
    link = app_url + urlsplit(mailed_link()).path
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page: Page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(link)
    expect(page.get_by_role("heading", name="Join Desert Air & Plumbing")).to_be_visible()
    shot(page, f"join-{width}-{scheme}")
    page.get_by_label("Your name").fill("Nora New")
    page.get_by_label("Your phone").fill("602 555")
    page.get_by_label("New password", exact=True).fill(PASSWORD)
    page.get_by_label("New password confirmation").fill("another")
    page.get_by_role("button", name="Join").click()
    expect(page.get_by_text("Enter a valid phone number, such as (201) 555-0123")).to_be_visible()
    expect(page.get_by_text("The two password fields didn’t match.")).to_be_visible()
    expect(page.get_by_label("Your name")).to_have_value("Nora New")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(page, f"join-errors-{width}-{scheme}")
    page.get_by_label("Your phone").fill("(602) 555-0134")
    page.get_by_label("New password", exact=True).fill(PASSWORD)
    page.get_by_label("New password confirmation").fill(PASSWORD)
    page.get_by_role("button", name="Join").click()
    page.wait_for_url("**/login/**")
    nora = User.objects.get(email="new@desert.example")
    assert (nora.name, str(nora.phone), nora.check_password(PASSWORD)) == ("Nora New", "+16025550134", True)
    assert Membership.objects.get(organization=organization, user=nora).is_active
    page.goto(link)
    expect(page.get_by_role("heading", name="This invitation is no longer valid")).to_be_visible()
    shot(page, f"join-used-{width}-{scheme}")
    page.get_by_role("link", name="Sign in").click()
    page.wait_for_url("**/login/**")
    context.close()
