"""Check pages with axe: WCAG 2.2 AA, light and dark, and no page wider than a phone.

Every page of the console, of customers and of technicians, and one of each kind in the admin, with a row of each
kind.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from dispatch.jobs import signed_links
from dispatch.jobs.models import CustomerTextPolicy, Job, Offer, PublicForm, Submission
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.schedules.models import Run, Schedule
from dispatch.technicians.models import Technician
from tests.e2e.test_board import WCAG
from tests.support.tenants import Tenant, tenant

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def pages(ours: Tenant) -> list[str]:
    return [
        f"/board/?job={ours.row(Job).pk}&map=1",
        "/board/?text=nobody-is-called-that",
        "/board/?layout=list",
        "/board/timeline/",
        "/reports/",
        *(f"/reports/{slug}/?days=366" for slug in ("technicians", "hours", "numbers")),
        "/leads/",
        "/leads/phone/?q=602-555-0134",
        "/leads/upload/",
        "/leads/live/",
        "/outbox/?state=all",
        f"/outbox/groups/{ours.row(MessageGroup).pk}/",
        "/outbox/messages/",
        f"/outbox/messages/{ours.row(Message).pk}/",
        "/outbox/endpoints/",
        f"/outbox/endpoints/{ours.row(Endpoint).pk}/",
        "/schedules/?view=all",
        "/schedules/?view=calendar",
        "/schedules/?view=runs",
        "/schedules/new/?kind=submission",
        f"/schedules/{ours.row(Schedule).pk}/",
        f"/schedules/runs/{ours.row(Run).pk}/",
        "/notifications/",
        "/notifications/choices/",
        "/notifications/channels/new/slack/",
        "/account/second-factor/",
        "/account/second-factor/totp/activate/",
        "/account/second-factor/webauthn/add/",
        "/account/sessions/",
        "/phones/",
        f"/f/{ours.row(PublicForm).organization.slug}/",
        urlsplit(signed_links.status_url(ours.row(Submission))).path,
        urlsplit(signed_links.offer_url(ours.row(Offer))).path,
        urlsplit(signed_links.technician_url(ours.row(Technician))).path,
    ]


def pages_of_the_admin(ours: Tenant) -> list[str]:
    """One of each kind: the landing page, a list, a job, forms with a map and with choices of several."""
    return [
        "/admin/",
        "/admin/jobs/job/",
        f"/admin/jobs/job/{ours.row(Job).pk}/change/",
        f"/admin/technicians/technician/{ours.row(Technician).pk}/change/",
        f"/admin/jobs/customertextpolicy/{ours.row(CustomerTextPolicy).pk}/change/",
        f"/admin/outbox/endpoint/{ours.row(Endpoint).pk}/change/",
        "/admin/accounts/apikey/add/",
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1440)])
def test_the_admin_is_accessible_and_fits(app_url, sign_in, scheme, width):
    ours = tenant("Alphaville")
    page = sign_in(ours.admin, scheme=scheme, width=width, path="/admin/")
    for path in pages_of_the_admin(ours):
        answer = page.goto(app_url + path)
        assert answer.status == 200, path
        accessible_and_fitting(page, width)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_every_page_is_accessible_and_fits(app_url, sign_in, scheme, width):
    ours = tenant("Alphaville")
    page = sign_in(ours.admin, scheme=scheme, width=width, path="/board/")
    for path in pages(ours):
        answer = page.goto(app_url + path)
        assert answer.status == 200, path
        expect(page.locator("h1, h2").first).to_be_attached()
        accessible_and_fitting(page, width)
    missing = page.goto(f"{app_url}/nowhere/")
    assert missing.status == 404
    accessible_and_fitting(page, width)


def accessible_and_fitting(page: Page, width: int) -> None:
    found = Axe().run(page, options=WCAG)
    assert found.violations_count == 0, f"{page.url}\n{found.generate_report()}"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
