"""The board follows the browser's Back and Forward, also if a request for the earlier view failed."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from dispatch.jobs.models import Job
from tests.e2e.test_board import card, live
from tests.e2e.test_search_on_a_bad_connection import jobs
from tests.harness.jobs import Floor
from tests.support import factories as make

__all__ = ["jobs"]

pytestmark = pytest.mark.browser


@pytest.fixture
def page(floor: Floor, sign_in) -> Page:
    return live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))


def test_job_of_a_step_forward_opens_when_the_server_answers_again(page: Page, jobs: tuple[Job, Job]):
    job, other = jobs
    notices, drawer = page.locator("#notices"), page.locator("#drawer")
    for one in (other, job):
        card(page, "attention", one).click()
        expect(page).to_have_url(re.compile(f"job={one.pk}$"))
    page.evaluate("history.back()")
    expect(drawer).to_have_attribute("data-job", str(other.pk))
    failed: list[Route] = []

    def fail_twice(route: Route) -> None:
        failed.append(route)
        if len(failed) == 1:
            return route.abort()
        return route.fulfill(status=503) if len(failed) == 2 else route.continue_()

    page.route(f"**/board/jobs/{job.pk}/", fail_twice)
    page.evaluate("history.forward()")
    expect(notices).to_contain_text(f"Job #{job.pk} can't be loaded yet. It opens when the server answers again.")
    expect(drawer).to_have_attribute("data-job", str(job.pk))
    expect(page).to_have_url(re.compile(f"job={job.pk}$"))
    assert "Nothing was changed" not in notices.inner_text(), "one notice tells of the failure"
    assert page.evaluate("window.neverReloaded")


def test_filters_of_a_step_back_apply_when_the_server_answers_again(page: Page, jobs: tuple[Job, Job]):
    found, other = jobs
    page.keyboard.press("/")
    page.keyboard.insert_text("quill")
    expect(card(page, "attention", other)).to_have_count(0)
    card(page, "attention", found).click()
    expect(page).to_have_url(re.compile(f"text=quill&job={found.pk}$"))
    page.route(re.compile("/board/$"), lambda route: route.fulfill(status=502), times=1)
    page.evaluate("history.go(-2)")
    expect(page.locator("#notices")).to_contain_text(
        "The board of this address can't be loaded yet. It appears when the server answers again."
    )
    expect(page.locator("#drawer")).to_have_count(0)
    expect(card(page, "attention", other)).to_be_visible()
    expect(page.locator("#text")).to_have_value("")
    expect(page.locator("#clear")).to_be_hidden()
    assert page.evaluate("window.neverReloaded")
    page.context.set_offline(True)
    page.evaluate("history.go(2)")
    expect(page.locator("#drawer")).to_have_count(0)
    page.context.set_offline(False)
    expect(page.locator("#text")).to_have_value("quill")
    expect(card(page, "attention", other)).to_have_count(0)
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(found.pk))
    expect(page.locator("#clear")).to_be_visible()
    assert page.evaluate("window.neverReloaded")
    page.route(re.compile("text=zz"), lambda route: None)
    with page.expect_request(re.compile("text=zz")):
        page.locator("#text").fill("zz")
    page.route(re.compile("/board/$"), lambda route: None)
    with page.expect_request(re.compile("/board/$")):
        page.evaluate("history.go(-2)")
    page.evaluate("history.go(2)")
    expect(page.locator("#text")).to_have_value("quill")
