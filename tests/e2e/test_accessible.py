"""Every page of the console, of customers and of technicians, with a row of each kind, as axe sees it: WCAG 2.2
AA, light and dark, and no page wider than a phone."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from dispatch.jobs import links
from dispatch.jobs.models import Job, Offer, PublicForm, Submission
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.schedules.models import Run, Schedule
from dispatch.technicians.models import Technician
from tests.e2e.test_board import WCAG
from tests.tenants import Tenant, tenant

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def pages(ours: Tenant) -> list[str]:
    return [
        f"/board/?job={ours.row(Job).pk}&map=1",
        "/board/?text=nobody-is-called-that",
        "/reports/",
        "/leads/",
        "/leads/phone/?q=602-555-0134",
        "/leads/upload/",
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
        "/phones/",
        f"/f/{ours.row(PublicForm).organization.slug}/",
        urlsplit(links.status_url(ours.row(Submission))).path,
        urlsplit(links.offer_url(ours.row(Offer))).path,
        urlsplit(links.technician_url(ours.row(Technician))).path,
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_every_page_is_accessible_and_fits(app_url, sign_in, scheme, width):
    ours = tenant("Alphaville")
    page = sign_in(ours.admin, scheme=scheme, width=width, path="/board/")
    for path in pages(ours):
        answer = page.goto(app_url + path)
        assert answer.status == 200, path
        expect(page.locator("h1, h2").first).to_be_attached()
        found = Axe().run(page, options=WCAG)
        assert found.violations_count == 0, f"{path}\n{found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
