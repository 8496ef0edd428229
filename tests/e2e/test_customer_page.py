"""A customer tracks, corrects and cancels a request on its page, in real Chromium, on desktop and phone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from dispatch.core import clock
from dispatch.jobs import signed_links
from dispatch.jobs.models import CustomerTextPolicy, Job, Submission
from dispatch.technicians.models import Technician
from tests.e2e.test_accessible import accessible_and_fitting
from tests.support.factories import TEMPE
from tests.support.tenants import Tenant, tenant
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

DEVICES = [
    pytest.param((width, scheme), id=f"{name}-{scheme}")
    for width, name in ((1440, "desktop"), (390, "phone"))
    for scheme in ("light", "dark")
]


@pytest.fixture
def ours(app_url: str) -> Tenant:
    """A request whose technician is on the way."""
    made = tenant("Alphaville")
    CustomerTextPolicy.objects.update(contact_phone="+16025550100")
    technician = made.row(Technician)
    Technician.objects.filter(pk=technician.pk).update(name="Ann Lee", open_jobs=1)
    now = clock.now()
    Job.objects.filter(pk=made.row(Job).pk).update(
        status="assigned", pending_reason="", waiting_for="", technician=technician, assigned_at=now,
        on_the_way_at=now, eta_at=now + timedelta(minutes=20),
    )  # fmt: skip
    return made


@pytest.fixture
def customer(chromium: Browser, app_url: str, ours: Tenant, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page of the request in the browser of a person who has not signed in."""
    width, scheme = request.param
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(app_url + urlsplit(signed_links.status_url(ours.row(Submission))).path)
    yield page
    context.close()
    assert not errors


def width_of(page: Page) -> int:
    size = page.viewport_size
    assert size is not None
    return int(size["width"])


def job_of(ours: Tenant) -> Job:
    return Job.objects.get(pk=ours.row(Job).pk)


@pytest.mark.parametrize("customer", DEVICES, indirect=True)
def test_customer_corrects_and_cancels(ours: Tenant, customer: Page) -> None:
    page = customer
    expect(page.get_by_role("heading", level=1)).to_have_text("Ann is on the way")
    expect(page.locator("#request")).to_contain_text("Expected at about")
    page.get_by_text("Correct the address or phone").click()
    accessible_and_fitting(page, width_of(page))
    page.get_by_label("Address", exact=True).fill("nowhere at all")
    page.get_by_role("button", name="Save changes").click()
    expect(page.get_by_role("alert")).to_contain_text("We can't find this address")
    page.get_by_label("Address", exact=True).fill(TEMPE.address)
    page.get_by_label("New phone").fill("602 555 0199")
    page.get_by_role("button", name="Save changes").click()
    expect(page.locator(".notice.good")).to_have_text("Your request has been updated.")
    expect(page.locator("#request")).to_contain_text(TEMPE.address)
    assert (job_of(ours).address, str(job_of(ours).customer_phone)) == (TEMPE.address, "+16025550199")

    page.get_by_text("Cancel this request", exact=True).click()
    expect(page.get_by_text("Cancel this request?")).to_be_visible()
    accessible_and_fitting(page, width_of(page))
    page.get_by_label("Reason").fill("It works again")
    page.get_by_role("button", name="Yes, cancel request").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("This request was canceled")
    expect(page.locator(".notice.good")).to_have_text("Your request is canceled.")
    expect(page.locator("#changes").get_by_role("button")).to_have_count(0)
    accessible_and_fitting(page, width_of(page))
    assert job_of(ours).status == "cancelled"


@pytest.mark.parametrize("customer", DEVICES[:1], indirect=True)
def test_forms_disappear_when_the_work_starts_while_the_page_is_open(ours: Tenant, customer: Page) -> None:
    page = customer
    page.clock.install()
    page.reload()
    page.get_by_text("Cancel this request", exact=True).focus()
    state = page.locator("#request").get_by_role("status")
    before = state.locator("p").inner_text()
    state.evaluate("state => state.setAttribute('data-before', '')")
    Job.objects.filter(pk=job_of(ours).pk).update(eta_at=clock.now() + timedelta(minutes=75))
    page.clock.fast_forward(15_000)
    expect(page.locator("#request")).not_to_contain_text(before)
    expect(page.get_by_text("Cancel this request", exact=True)).to_be_focused()
    Job.objects.filter(pk=job_of(ours).pk).update(started_at=clock.now())
    page.clock.fast_forward(15_000)
    expect(page.get_by_role("heading", level=1)).to_have_text("Ann is working on your request")
    expect(page.locator("#changes")).to_contain_text("call Alphaville Heating at (602) 555-0100")
    expect(page.locator("#changes").get_by_role("button")).to_have_count(0)
    expect(state, "the same element, whose change is announced").to_have_attribute("data-before", "")
    expect(state).to_be_focused()


@pytest.mark.parametrize("customer", DEVICES[-1:], indirect=True)
def test_a_wrong_link_is_explained(customer: Page) -> None:
    page = customer
    page.goto(page.url.rstrip("/") + "x/")
    expect(page.get_by_role("heading", level=1)).to_have_text("This link doesn't work")
    accessible_and_fitting(page, width_of(page))
