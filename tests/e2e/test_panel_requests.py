"""The panel of a job shows what was requested last, whatever arrives after it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Error, Page, Route, expect

from accounts.tenancy import actor_of
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import notes
from tests.e2e.test_board import column, live
from tests.harness.jobs import Floor
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

OTHER_PHONE = "+16025550177"


@pytest.fixture
def jobs(floor: Floor) -> list[Job]:
    """Two jobs for which nobody is near."""
    made = [floor.started(), floor.started(customer_phone=OTHER_PHONE, address="9 Elm Street, Phoenix, AZ 85003")]
    assert [job.status for job in made] == ["pending", "pending"]
    return made


@pytest.fixture
def page(floor: Floor, sign_in: Callable[..., Page], jobs: list[Job]) -> Page:
    return live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={jobs[0].pk}"))


def hold(page: Page, address: str | re.Pattern[str], method: str) -> list[Route]:
    """Hold back the requests with this address and method, in the returned list."""
    held: list[Route] = []
    page.route(address, lambda route: held.append(route) if route.request.method == method else route.fallback())
    return held


def first(page: Page, held: list[Route]) -> Route:
    route: Route = wait_until(lambda: page.wait_for_timeout(20) or held)[0]
    return route


def settle(page: Page) -> None:
    """Let the page handle what has arrived."""
    page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 300))")


def open_job(page: Page, job: Job) -> None:
    column(page, "attention").locator(f'a.open[data-open="{job.pk}"]').click()
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(job.pk))


def send_cancellation(page: Page) -> Route:
    """Cancel the open job; the request is held back."""
    page.locator("#act-cancel").click()
    held = hold(page, "**/act/cancel/", "POST")
    page.locator("#ask").get_by_role("textbox").fill("The customer called it off")
    page.locator("#ask [data-do]").click()
    return first(page, held)


def cancel(page: Page, sent: Route, job: Job) -> None:
    """Let the held request through, and let the page handle the response."""
    with page.expect_response("**/act/cancel/"):
        sent.continue_()
    settle(page)
    assert Job.objects.get(pk=job.pk).status == "cancelled"


def test_an_earlier_page_that_arrives_late_is_not_shown(page: Page, jobs: list[Job]) -> None:
    page.locator("#act-correct").click()
    held = hold(page, f"**/board/jobs/{jobs[0].pk}/", "GET")
    page.locator("#ask-back").click()
    route = first(page, held)
    answer = route.fetch()
    page.locator("#act-dispatch-again").click()
    button = page.get_by_role("button", name="Call technicians again")
    expect(button).to_be_focused()
    with contextlib.suppress(Error):  # the page has given up the request
        route.fulfill(response=answer)
    settle(page)
    expect(button).to_be_focused()


def test_another_job_opened_meanwhile_stays_open_after_a_form_was_sent(page: Page, jobs: list[Job]) -> None:
    sent = send_cancellation(page)
    open_job(page, jobs[1])
    cancel(page, sent, jobs[0])
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(jobs[1].pk))


def test_refusal_of_a_form_is_reported_although_another_job_was_opened(
    page: Page, floor: Floor, jobs: list[Job]
) -> None:
    sent = send_cancellation(page)
    open_job(page, jobs[1])
    kim = actor_of(make.dispatcher(floor.organization, "Kim"))
    services.cancel(jobs[0].pk, "done otherwise", actor=kim)
    sent.continue_()
    expect(page.locator("#notices")).to_contain_text(f"#{jobs[0].pk}: This job is canceled")
    expect(page.locator("#notices")).to_contain_text("Kim canceled the job: done otherwise. Nothing was changed.")
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(jobs[1].pk))


def test_outcome_of_a_form_is_reported_although_another_job_was_opened(page: Page, jobs: list[Job]) -> None:
    notices = page.locator("#notices")

    def send_and_leave() -> Route:
        open_job(page, jobs[0])
        sent = send_cancellation(page)
        open_job(page, jobs[1])
        return sent

    send_and_leave().abort()
    check = "Check whether your change was saved before trying again."
    expect(notices).to_contain_text(f"#{jobs[0].pk}: The server could not be reached. {check}")
    send_and_leave().fulfill(status=502)
    expect(notices).to_contain_text(f"#{jobs[0].pk}: The server failed (error 502). {check}")
    send_and_leave().continue_()
    expect(notices).to_contain_text(f"Job #{jobs[0].pk}: canceled.")


@pytest.mark.parametrize("part", ["body", "list"])
@pytest.mark.parametrize("path", ["/board/", "/board/timeline/"])
def test_part_that_cannot_be_refreshed_is_requested_again_without_a_notice(
    page: Page, floor: Floor, jobs: list[Job], path: str, part: str
) -> None:
    page.goto(f"{page.url.partition('/board/')[0]}{path}?job={jobs[0].pk}")
    live(page)
    kim = actor_of(make.dispatcher(floor.organization, "Kim"))
    page.route(f"**/?part={part}*", lambda route: route.fulfill(status=502), times=1)
    notes.write_note(jobs[0].pk, "Gate code 1234", actor=kim)
    expect(page.locator("#drawer-body")).to_contain_text("Kim wrote a note")
    expect(page.locator("#notes-list")).to_contain_text("Gate code 1234")
    assert "That didn't work" not in page.locator("#notices").inner_text(), "a notice stays for a while"


def test_a_panel_closed_meanwhile_stays_closed_after_a_form_was_sent(page: Page, jobs: list[Job]) -> None:
    sent = send_cancellation(page)
    page.locator("#drawer-close").click()
    expect(page.locator("#drawer")).to_have_count(0)
    cancel(page, sent, jobs[0])
    expect(page.locator("#drawer")).to_have_count(0)


def test_job_clicked_last_opens_at_once_although_another_still_loads(page: Page, jobs: list[Job]) -> None:
    held = hold(page, f"**/board/jobs/{jobs[0].pk}/", "GET")
    page.locator("#drawer-close").click()
    links = [column(page, "attention").locator(f'a.open[data-open="{job.pk}"]') for job in jobs]
    links[0].click()
    first(page, held)
    links[1].click()
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(jobs[1].pk))
    expect(page).to_have_url(re.compile(f"job={jobs[1].pk}$"))
    links[0].click()
    wait_until(lambda: page.wait_for_timeout(20) or len(held) > 1)
    page.locator("#drawer-close").click()
    links[1].click()
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(jobs[1].pk))
    expect(page).to_have_url(re.compile(f"job={jobs[1].pk}$"))
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_have_count(0)
    with page.expect_event("requestfailed", lambda request: request.url.endswith(f"/{jobs[0].pk}/")):
        links[0].click()
        page.keyboard.press("Escape")


def test_shortcut_for_a_job_that_does_not_open_acts_on_no_other(page: Page, jobs: list[Job]) -> None:
    page.route(f"**/board/jobs/{jobs[1].pk}/", lambda route: route.abort())
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    column(page, "attention").locator(f'a.open[data-open="{jobs[1].pk}"]').focus()
    page.keyboard.press("a")
    expect(page.locator("#notices")).to_contain_text("The server could not be reached")
    settle(page)
    assert not [address for address in asked if "/act/" in address]
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(jobs[0].pk))


def test_form_of_a_job_that_ends_meanwhile_keeps_its_text_and_says_why_it_cannot_be_sent(
    page: Page, floor: Floor, jobs: list[Job]
) -> None:
    page.locator("#act-assign").click()
    note, button = page.locator("#ask").get_by_label("Note"), page.locator("#ask [data-do]")
    note.fill("Gate code 4411")
    kim = actor_of(make.dispatcher(floor.organization, "Kim"))
    services.cancel(jobs[0].pk, "done otherwise", actor=kim)
    alert = page.locator("#ask [role=alert]")
    expect(alert).to_contain_text("This job is canceled, so it can't be assigned.")
    expect(alert).to_contain_text("Kim canceled the job: done otherwise. What you entered is kept")
    expect(button).to_be_disabled()
    expect(note).to_have_value("Gate code 4411")
    expect(note).to_be_focused()
    services.dispatch_again(jobs[0].pk, actor=kim)
    expect(button).to_be_enabled()
    expect(alert).to_have_count(0)
    expect(note).to_have_value("Gate code 4411")
