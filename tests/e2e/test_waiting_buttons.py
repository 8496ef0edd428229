"""What a person pressed on the board shows that its request is under way, and is not sent twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.e2e.test_board import column, live, make_pending, pending
from tests.e2e.test_panel_requests import first, hold
from tests.harness.jobs import Floor
from tests.support import factories as make

__all__ = ["pending"]

pytestmark = pytest.mark.browser


@pytest.fixture
def page(floor: Floor, sign_in: Callable[..., Page], pending: Job) -> Page:
    return live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))


def press_twice(page: Page, button: Locator, address: str) -> Route:
    """Press the button twice on a slow server. Return the only request, which is held back."""
    held = hold(page, address, "POST")
    button.click()
    sent = first(page, held)
    expect(button).to_have_css("opacity", "0.55")
    button.click()
    button.press("Enter")
    return sent


def test_claim_waits_until_the_list_names_the_owner(page: Page, pending: Job) -> None:
    row = column(page, "attention").locator(f'[data-id="job-{pending.pk}"]')
    button = row.get_by_role("button", name="Claim")
    requests: list[str] = []
    page.on("request", lambda request: "/claims/" in request.url and requests.append(request.url))
    sent = press_twice(page, button, "**/board/claims/")
    lists = hold(page, "**/board/changes/**", "GET")
    with page.expect_response("**/board/claims/"):
        sent.continue_()
    first(page, lists)
    expect(button).to_have_css("opacity", "0.55")
    button.click()
    page.unroute("**/board/changes/**")
    for route in lists:
        route.continue_()
    expect(row).to_contain_text("Claimed by you")
    expect(row.get_by_role("button", name="Release")).to_have_css("opacity", "1")
    assert len(requests) == 1, "one press, one request"


def test_claim_that_failed_can_be_pressed_again(page: Page, pending: Job) -> None:
    row = column(page, "attention").locator(f'[data-id="job-{pending.pk}"]')
    button = row.get_by_role("button", name="Claim")
    press_twice(page, button, "**/board/claims/").abort()
    page.unroute("**/board/claims/")
    expect(page.locator("#notices")).to_contain_text("The server could not be reached.")
    expect(button).to_have_css("opacity", "1")
    button.click()
    expect(row).to_contain_text("Claimed by you")


def test_resuming_a_technician_and_claiming_selected_jobs_are_sent_once(page: Page, floor: Floor) -> None:
    Technician.objects.filter(name="Ann").update(auto_paused_at=make_pending(floor).created_at)
    page.reload()
    live(page)
    page.locator("#crew-slot summary", has_text="paused").click()
    resume = press_twice(page, page.get_by_role("button", name="Resume Ann"), "**/board/crew/*/back/")
    column(page, "attention").get_by_role("button", name="Select", exact=True).click()
    column(page, "attention").get_by_role("button", name="Select all shown").click()
    claim = press_twice(page, page.locator("#selected").get_by_role("button", name="Claim"), "**/board/selected/")
    cancel = page.locator("#selected").get_by_role("button", name="Cancel…")
    expect(cancel).to_have_css("opacity", "0.55")
    cancel.click()
    for sent in (resume, claim):
        sent.continue_()
    expect(page.locator("#notices")).to_contain_text("Ann was resumed and gets offers again.")
    expect(page.locator("#notices")).to_contain_text("Claimed 2 jobs.")
    expect(page.locator("#drawer")).to_have_count(0)


def test_job_that_a_slow_server_has_not_sent_yet_is_marked(page: Page, pending: Job) -> None:
    row = column(page, "attention").locator(f'[data-id="job-{pending.pk}"]')
    held = hold(page, f"**/board/jobs/{pending.pk}/", "GET")
    row.locator("a.open").click()
    sent = first(page, held)
    expect(row.locator(".item")).to_have_css("opacity", "0.55")
    sent.continue_()
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(pending.pk))
    expect(row.locator(".item")).to_have_css("opacity", "1")
