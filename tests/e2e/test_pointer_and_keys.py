"""A press is never lost to an update: redrawing waits until the pointer or key is released."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from dispatch.core import events
from dispatch.core.events import SYSTEM
from dispatch.jobs import services as jobs
from dispatch.jobs.models import Job
from dispatch.technicians import services
from dispatch.technicians.models import Technician
from tests.core.threads import Elsewhere
from tests.e2e.test_board import column, live, make_pending, tell_people
from tests.phones import ignore
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def waiting(floor) -> Job:
    """A job that nobody accepted."""
    floor.phone(floor.technician("Ann")).will(ignore())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    return floor.job(job)


def moves(job: Job, address: str) -> None:
    """Correct the job's location, as another process would."""

    def correct() -> None:
        Job.objects.filter(pk=job.pk).update(address=address)
        events.append(job.organization_id, "job.edited", job.pk)

    Elsewhere(correct).finish()


def caught_up(page: Page) -> Page:
    """Wait until the page has fetched earlier changes.

    While a press lasts, the page fetches nothing.
    """
    expect(live(page).locator("html")).to_have_attribute("data-applied", re.compile(r"\d"))
    return page


def press(page: Page, locator) -> None:
    """Press the pointer on the element without releasing it."""
    locator.hover()
    page.mouse.down()


def test_click_counts_although_its_card_is_redrawn(floor, sign_in, waiting):
    page = caught_up(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    place = column(page, "attention").locator(".where")
    with page.expect_response("**/board/changes/**"):
        press(page, column(page, "attention").get_by_role("button", name="Claim"))
        moves(waiting, "9 New Street, Phoenix")
    expect(place).not_to_contain_text("9 New Street")
    page.mouse.up()
    expect(column(page, "attention")).to_contain_text("Claimed by you")
    expect(place).to_contain_text("9 New Street")


def test_click_in_the_drawer_counts_although_it_is_redrawn(floor, sign_in, waiting):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={waiting.pk}"))
    press(page, page.locator("#act-assign"))
    with page.expect_response(f"**/board/jobs/{waiting.pk}/?part=body"):
        moves(waiting, "9 New Street, Phoenix")
    page.mouse.up()
    expect(page.locator("#ask")).to_contain_text("Assign")
    expect(page.locator("#drawer-body")).to_contain_text("9 New Street")
    assert page.evaluate("window.neverReloaded")


def test_space_bar_counts_although_the_button_is_redrawn(floor, sign_in, waiting):
    page = caught_up(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    column(page, "attention").get_by_role("button", name="Claim").focus()
    with page.expect_response("**/board/changes/**"):
        page.keyboard.down("Space")
        moves(waiting, "9 New Street, Phoenix")
    page.keyboard.up("Space")
    expect(column(page, "attention")).to_contain_text("Claimed by you")


def test_changes_while_the_drawer_loads_are_shown(floor, sign_in, waiting):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    asked: list[Route] = []
    page.route(f"**/board/jobs/{waiting.pk}/", lambda route: asked.append(route))
    expect(column(page, "attention").locator("a.open")).to_be_visible()
    page.evaluate("document.querySelector('[data-list=attention] a.open').click()")
    wait_until(lambda: page.wait_for_timeout(20) or asked)
    old = asked[0].fetch()  # answered before the place was corrected, and arriving after
    moves(waiting, "9 New Street, Phoenix")
    expect(column(page, "attention").locator(".where")).to_contain_text("9 New Street")
    asked[0].fulfill(response=old)
    expect(page.locator("#drawer-body")).to_contain_text("9 New Street")
    assert "9 New Street" not in old.text()


def test_technician_strip_shows_last_of_quick_changes(floor, sign_in):
    crew = floor.crew("Ann", "Bo", "Cy")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    for one in crew:
        Elsewhere(lambda pk=one.pk: services.set_duty(pk, False, actor=SYSTEM)).finish()
    expect(page.locator("#crew-slot")).to_contain_text("Off duty 3")


def test_open_menu_in_the_technician_strip_stays_open(floor, sign_in):
    ann, _ = floor.crew("Ann", "Bo")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    crew = page.locator("#crew-slot")
    crew.locator("summary", has_text="Available").click()
    crew.get_by_role("link", name="Bo").focus()
    Elsewhere(lambda: services.set_duty(ann.pk, False, actor=SYSTEM)).finish()
    expect(crew).to_contain_text("Off duty")
    expect(crew.get_by_role("link", name="Bo")).to_be_focused()
    expect(crew.get_by_role("link", name="Ann")).to_be_hidden()


def test_technician_strip_follows_jobs_and_time(floor, sign_in, waiting):
    bo = floor.technician("Bo")
    page = sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/")
    page.clock.install()
    page.reload()
    crew = live(page).locator("#crew-slot")
    expect(crew).to_contain_text("Available 2")
    Elsewhere(lambda: jobs.assign(waiting.pk, bo.pk, actor=SYSTEM)).finish()
    expect(crew).to_contain_text("On a job 1")
    Elsewhere(lambda: jobs.complete(waiting.pk, actor=SYSTEM)).finish()
    expect(crew).to_contain_text("Available 2")
    Technician.objects.filter(pk=bo.pk).update(on_duty=False)  # no event, as at the end of a shift
    page.clock.fast_forward("01:00")
    expect(crew).to_contain_text("Off duty 1")


def test_focus_stays_on_a_link_of_the_panel_that_is_redrawn(floor, sign_in, waiting):
    twin = floor.started()
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={twin.pk}"))
    links = page.locator("#drawer-body a:not(.button)")
    assert links.count() > 1
    for number in range(links.count()):
        links.nth(number).focus()
        moves(twin, f"{number} New Street, Phoenix")
        expect(page.locator("#drawer-body")).to_contain_text(f"{number} New Street")
        expect(links.nth(number)).to_be_focused()


def test_a_shortcut_that_is_held_down_acts_once(floor, sign_in, waiting):
    make_pending(floor)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    tell_people()
    bar = page.locator("#alert-bar")
    expect(bar).to_contain_text("2 jobs need a dispatcher")
    for _ in range(3):
        page.keyboard.down("x")  # pressed again before the release: repeated
    expect(bar).not_to_contain_text("2 jobs need a dispatcher")
    expect(page.get_by_role("alert")).to_be_visible()
    page.keyboard.up("x")
    page.keyboard.press("x")
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("width", [1440, 390])
def test_a_form_begins_at_its_first_field_and_one_that_needs_nothing_at_its_button(floor, sign_in, waiting, width):
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/?job={waiting.pk}", width=width))
    page.locator(".acts").get_by_text("Correct").click()
    address = page.locator("#ask").get_by_label("Address")
    expect(address).to_be_focused()
    expect(address).to_be_in_viewport(ratio=1)
    page.locator("#ask-back").click()
    page.locator(".acts").get_by_text("Call technicians again").click()
    expect(page.get_by_role("button", name="Call technicians again")).to_be_focused()
    page.keyboard.press("Enter")
    wait_until(lambda: Job.objects.get(pk=waiting.pk).status == "dispatching")
