"""The focus stays where a keyboard user works, whatever an action or a live update replaces."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from accounts.models import HandoverNote
from dispatch.core import events
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.e2e.test_board import BOB, card, column, elsewhere, live, make_pending, tell_people
from tests.e2e.test_long_columns import make_jobs
from tests.harness.jobs import Floor
from tests.phones import ignore
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

COVERED = """
() => [...document.querySelectorAll('a[href], button, summary, input, select, [tabindex="0"]')]
  .filter(one => one.checkVisibility({visibilityProperty: true}) && !one.closest('[inert], #drawer, #notices'))
  .map(one => one.id || one.textContent.trim())
"""


@pytest.fixture
def pending(floor: Floor) -> Job:
    """A job that nobody accepted."""
    for technician in floor.crew("Ann", "Bo"):
        floor.phone(technician).will(ignore())
    return make_pending(floor)


def press(control: Locator, key: str = "Enter") -> None:
    """Press the key on the control, as after moving there with Tab."""
    control.focus()
    control.press(key)


def move(job: Job, address: str) -> None:
    """Correct the job's location."""
    Job.objects.filter(pk=job.pk).update(address=address)
    events.append(job.organization_id, "job.edited", job.pk)


def is_kept(page: Page) -> None:
    """Wait until something has the focus that is neither the whole page nor its main part."""
    wait_until(lambda: page.evaluate("!['BODY', 'MAIN'].includes(document.activeElement.tagName)"))


def test_an_action_that_replaces_its_button_leaves_the_focus_beside_it(floor, sign_in, pending):
    kim = make.dispatcher(floor.organization, "Kim")
    HandoverNote.objects.create(organization=floor.organization, author=kim, text="The gas leak is done.")
    second = make_pending(floor)
    make_jobs(floor, 45)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana", on_duty=False), path="/board/"))
    press(page.get_by_role("button", name="Go on duty"))
    expect(page.get_by_role("button", name="On duty")).to_be_focused()
    press(page.get_by_role("button", name="Mark as read"))
    expect(page.locator(".handover")).to_have_count(0)
    is_kept(page)
    more = column(page, "new").get_by_role("link", name="Show more")
    shown = column(page, "new").locator("a.open")
    count = shown.count()
    press(more)
    expect(shown.nth(count)).to_be_focused()

    press(column(page, "attention").get_by_role("button", name=re.compile(rf"Claim .*#{pending.pk}$")))
    expect(column(page, "attention").get_by_role("button", name="Release")).to_be_focused()
    expect(page.locator("#said")).to_have_text("Claimed by you")
    press(page.get_by_role("button", name="Select", exact=True))
    page.get_by_label(f"Select job {second.pk}", exact=True).press("Space")
    press(page.locator("#selected").get_by_role("button", name="Cancel…"))
    expect(page.locator("#drawer-title")).to_have_text("Cancel jobs (1)")
    page.keyboard.press("Escape")
    expect(page.locator("#selected").get_by_role("button", name="Cancel…")).to_be_focused()
    press(page.locator("#selected").get_by_role("button", name="Claim"))
    expect(page.get_by_role("button", name="Select", exact=True)).to_be_focused()

    page.keyboard.press("N")  # with Caps Lock
    expect(page.locator("#new-job-form")).to_be_visible()
    page.locator("#drawer-close").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#new-job")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(page.locator("#main")).to_be_focused()


def test_a_change_that_removes_the_focused_control_leaves_the_focus_beside_it(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={pending.pk}"))
    page.locator("#act-assign").focus()
    elsewhere(lambda: services.cancel(pending.pk, "Called off", actor=BOB))
    expect(page.locator("#act-assign")).to_have_count(0)
    expect(page.locator("#drawer-title")).to_be_focused()
    expect(page.locator("#said")).to_contain_text("Canceled")

    crew = page.locator("#crew-slot")
    available = crew.locator("summary", has_text="Available")
    job, ann = make_pending(floor), Technician.objects.get(name="Ann")
    press(available)
    crew.get_by_role("link", name="Ann").focus()
    elsewhere(lambda: services.assign(job.pk, ann.pk, actor=BOB))
    expect(crew).to_contain_text("On a job 1")
    expect(available).to_be_focused()
    expect(crew.get_by_role("link", name="Bo")).to_be_visible()
    page.keyboard.press("Shift+Tab")
    expect(crew.get_by_role("link", name="Bo")).to_be_hidden()  # the menu would cover what has the focus


def test_new_cards_are_let_in_and_a_filter_is_left_by_keyboard(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    card(page, "attention", pending).focus()
    newer = make_pending(floor)
    news = column(page, "attention").get_by_role("button", name="1 new")
    expect(news).to_be_visible()
    expect(page.locator("#said")).to_have_text("Needs attention: 1 new")
    page.keyboard.press("Shift+Tab")
    expect(news).to_be_focused()
    page.keyboard.press("Enter")
    expect(card(page, "attention", newer)).to_be_visible()
    expect(column(page, "attention").locator("a.open").first).to_be_focused()

    page.get_by_label("City or ZIP code").fill("Phoenix")
    expect(page).to_have_url(re.compile("area=Phoenix"))
    page.evaluate("document.getElementById('lists').was = true")
    card(page, "attention", pending).focus()
    page.go_back()
    wait_until(lambda: page.evaluate("!document.getElementById('lists').was"))
    expect(page.locator("#views-button")).to_be_visible()
    expect(card(page, "attention", pending)).to_be_focused()


@pytest.mark.parametrize("path", ["/board/", "/board/timeline/"])
def test_a_sheet_hides_what_it_covers_from_keys_and_screen_readers(floor, sign_in, pending, path):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), width=390, path=path))
    tell_people()
    expect(page.locator("#alert-bar")).to_contain_text("needs a dispatcher")
    page.locator(f'a[data-open="{pending.pk}"]').first.click()
    expect(page.locator("#drawer-title")).to_be_focused()
    assert page.evaluate(COVERED) == []
    make_pending(floor)
    tell_people()
    expect(page.locator("#said")).to_have_text("2 jobs need a dispatcher")
    page.locator("#drawer-close").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.evaluate(COVERED)


def test_the_rows_of_the_timeline_keep_the_focus(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/timeline/?days=7"))
    chart = page.locator("#chart")
    for number, part in enumerate((page.locator("section.rows"), page.locator("thead a").first)):
        part.press("ArrowRight")
        elsewhere(lambda at=f"{number} New Street, Phoenix": move(pending, at))
        expect(chart).to_contain_text(f"{number} New Street")
        expect(part).to_be_focused()
