"""The panel of the timeline shows the job that was opened last, and stays current."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from accounts.tenancy import actor_of
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import notes
from tests.e2e.test_board import elsewhere, live
from tests.e2e.test_notes import write_many
from tests.e2e.test_panel_requests import OTHER_PHONE, cancel, first, hold, send_cancellation
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import reply, texting  # noqa: F401
from tests.support import factories as make

pytestmark = pytest.mark.browser


# What is fetched again after a second or more is not fetched.
NO_RETRIES = """
(original => {
  window.setTimeout = (go, ms, ...more) => (ms < 1000 || !ms ? original(go, ms, ...more) : 0);
})(setTimeout)
"""


@pytest.fixture
def jobs(floor: Floor) -> list[Job]:
    """Two jobs for which nobody is near."""
    return [floor.started(), floor.started(customer_phone=OTHER_PHONE, address="9 Elm Street, Phoenix, AZ 85003")]


@pytest.fixture
def page(floor: Floor, sign_in: Callable[..., Page], jobs: list[Job]) -> Page:
    dana = make.dispatcher(floor.organization, "Dana")
    return live(sign_in(dana, path=f"/board/timeline/?job={jobs[0].pk}"))


def choose(page: Page, job: Job) -> None:
    page.locator(f'.tray a[data-open="{job.pk}"]').click()


def expect_open(page: Page, job: Job) -> None:
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(job.pk))
    assert page.url.endswith(f"job={job.pk}")


def test_job_that_was_opened_last_stays_open(page: Page, jobs: list[Job]) -> None:
    one, other = jobs
    slow: list[Route] = hold(page, f"**/board/jobs/{other.pk}/", "GET")
    choose(page, other)
    first(page, slow)
    page.unroute(f"**/board/jobs/{other.pk}/")
    choose(page, one)
    page.locator("#act-correct").click()
    expect(page.locator("#ask")).to_be_visible()
    expect_open(page, one)
    page.route(f"**/board/jobs/{other.pk}/", lambda route: route.fulfill(status=404), times=1)
    choose(page, other)
    expect(page.locator("#notices")).to_contain_text("That didn't work (error 404)")
    expect_open(page, one)
    page.locator("#ask-back").click()
    expect(page.locator("#ask")).to_have_count(0)
    sent = send_cancellation(page)
    choose(page, other)
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(other.pk))
    cancel(page, sent, one)
    expect(page.locator("#notices")).to_contain_text(f"Job #{one.pk}: canceled.")
    expect_open(page, other)


def test_change_while_another_job_fails_to_open_is_fetched(page: Page, floor: Floor, jobs: list[Job]) -> None:
    one, other = jobs
    held: list[Route] = hold(page, f"**/board/jobs/{other.pk}/", "GET")
    choose(page, other)
    route = first(page, held)
    kim = actor_of(make.dispatcher(floor.organization, "Kim"))
    page.evaluate("document.body.addEventListener('dispatch:events', () => { document.body.dataset.heard = '1' })")
    notes.write_note(one.pk, "Gate code 1234", actor=kim)
    expect(page.locator("body")).to_have_attribute("data-heard", "1")
    page.evaluate(NO_RETRIES)
    route.abort()
    expect(page.locator("#drawer-body")).to_contain_text("Kim wrote a note")
    expect_open(page, one)


def test_texts_and_missed_changes_appear_in_the_panel(texting: Floor, sign_in: Callable[..., Page]) -> None:  # noqa: F811
    ann = texting.technician("Ann")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    dana = make.dispatcher(texting.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/timeline/?job={job.pk}"))
    expect(page.locator("#thread-list")).to_be_hidden()
    elsewhere(lambda: reply(texting, ann, "My truck broke down on I-17."))
    expect(page.locator("#thread-list")).to_contain_text("My truck broke down on I-17.")
    expect(page.get_by_role("button", name="No reply needed")).to_be_visible()
    write_many(job, dana, 2)
    page.evaluate("document.body.dispatchEvent(new CustomEvent('dispatch:refetch', { detail: {} }))")
    expect(page.locator("#notes-count")).to_have_text("2")


def test_keys_and_labels_of_the_panel(page: Page, floor: Floor) -> None:
    make.dispatcher(floor.organization, "Kim Lee")
    page.locator("#notes summary").click()
    page.get_by_label("New note").press_sequentially("Ask @ki")
    option = page.get_by_role("option", name="Kim Lee")
    expect(option).to_be_visible()
    page.keyboard.press("Escape")
    expect(option).to_have_count(0)
    expect(page.locator("#drawer")).to_be_visible()
    page.locator("#act-assign").click()
    page.locator("#ask").get_by_text("Technician", exact=True).click()
    expect(page.locator("#ask").get_by_placeholder("Search by name")).to_be_focused()
    page.locator("#drawer-title").focus()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.evaluate("window.Dispatch.store('shortcuts', '0')")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#ask")).to_have_count(0)
