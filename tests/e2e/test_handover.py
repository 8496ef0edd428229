"""Hand-over notes in browsers: written at the end of a shift, and read by the next."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from accounts import services as accounts
from accounts.handover_notes import services as handover_notes
from accounts.models import HandoverNote, HandoverReading
from dispatch.core.events import SYSTEM
from tests.core.threads import Elsewhere
from tests.e2e.screens import SCREENS
from tests.e2e.test_board import accessible, live
from tests.harness.jobs import Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_note_of_the_last_shift_is_read_by_the_next(floor: Floor, sign_in, width, scheme):
    dana = make.dispatcher(floor.organization, "Dana", on_duty=True)
    kim = make.dispatcher(floor.organization, "Kim", on_duty=False)
    leaving, arriving = (live(sign_in(who, path="/board/", width=width, scheme=scheme)) for who in (dana, kim))
    leaving.get_by_role("button", name="On duty").click()
    note = leaving.get_by_label("What should the next shift know?")
    expect(note).to_be_focused()
    accessible(leaving)
    leaving.keyboard.press("Escape")
    expect(note).to_be_hidden()
    leaving.get_by_role("button", name="On duty").click()
    note.fill("The gas leak is done.")
    leaving.get_by_role("button", name="Go off duty").click()
    expect(leaving.get_by_role("button", name="Go on duty")).to_be_visible()
    expect(arriving.locator(".handover")).to_have_count(0)
    arriving.get_by_role("button", name="Go on duty").click()
    expect(arriving.locator(".handover")).to_contain_text("The gas leak is done.")
    accessible(arriving)
    arriving.get_by_role("button", name="Mark as read").click()
    expect(arriving.locator(".handover")).to_have_count(0)


def test_a_hurried_dispatcher_reads_each_note_and_loses_none(floor: Floor, sign_in):
    kim = make.dispatcher(floor.organization, "Kim", on_duty=False)
    dana = make.dispatcher(floor.organization, "داليا", on_duty=True)
    texts = [f"{number}. " + "The Ortegas want a call before noon. " * 50 for number in range(1, 6)]
    for text in texts:
        HandoverNote.objects.create(organization=floor.organization, author=dana, text=text)
    page = live(sign_in(kim, path="/board/", width=1440))
    double_click(page, "Go on duty", lambda: expect(page.locator(".handover")).to_have_count(5))
    expect(page.locator("#end-shift")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "the board is still in view"
    accessible(page)
    sent: list[str] = []
    page.on("request", lambda request: request.method == "POST" and sent.append(request.url))
    double_click(page, "Mark as read", lambda: expect(page.locator(".handover")).to_have_count(4))
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert (len(sent), HandoverReading.objects.count()) == (1, 1)

    page.get_by_role("button", name="On duty").click()
    note = page.get_by_label("What should the next shift know?")
    note.fill("Written before the connection broke")
    page.context.set_offline(True)
    page.get_by_role("button", name="Go off duty").click()
    expect(page.locator("#notices")).to_contain_text(re.compile("could not be reached|You're offline"))
    expect(note).to_have_value("Written before the connection broke")
    page.context.set_offline(False)
    live(page)
    page.get_by_role("button", name="Go off duty").dblclick()
    expect(page.get_by_role("button", name="Go on duty")).to_be_visible()
    expect(page.locator(".handover")).to_have_count(0)
    page.get_by_role("link", name="Leads").click()
    expect(page).to_have_url(re.compile("/leads/"))
    page.go_back()
    expect(page.get_by_role("button", name="Go on duty")).to_be_visible()
    assert HandoverNote.objects.filter(author=kim).count() == 1


def test_another_tab_shows_the_duty_and_keeps_what_is_written(floor: Floor, sign_in):
    dana = make.dispatcher(floor.organization, "Dana", on_duty=False)
    kim = make.dispatcher(floor.organization, "Kim", on_duty=False)
    page = live(sign_in(dana, path="/board/"))
    other = page.context.new_page()
    other.goto(page.url.replace("/board/", "/reports/"))
    live(other).get_by_role("button", name="Go on duty").click()
    page.get_by_role("button", name="On duty", exact=True).click()
    note = page.get_by_label("What should the next shift know?")
    note.fill("The gas leak is done.")
    with page.expect_response("**/duty/?shown=1"):
        Elsewhere(lambda: accounts.set_duty(kim.memberships.get().pk, True, actor=SYSTEM)).finish()
    expect(note).to_have_value("The gas leak is done.")
    page.get_by_role("button", name="Go off duty").click()
    expect(page.locator("#notices")).to_contain_text("Your note is on the board for the next shift.")
    expect(other.get_by_role("button", name="Go on duty")).to_be_visible()


def test_note_that_is_being_written_stays_when_the_duty_ends_elsewhere(floor: Floor, sign_in):
    dana = make.dispatcher(floor.organization, "Dana", on_duty=True)
    page = live(sign_in(dana, path="/board/"))
    note = page.get_by_label("What should the next shift know?")

    def switch(on_duty: bool) -> None:
        Elsewhere(lambda: accounts.set_duty(dana.memberships.get().pk, on_duty, actor=SYSTEM)).finish()

    page.get_by_role("button", name="On duty", exact=True).click()
    note.fill("Forget it.")
    switch(False)
    unsent = page.locator("#duty > button", has_text="Off duty: send your note")
    expect(unsent).to_be_visible()
    expect(note).to_have_value("Forget it.")
    switch(True)
    expect(page.get_by_role("button", name="On duty", exact=True)).to_be_visible()
    switch(False)
    expect(unsent).to_be_visible()
    note.fill("")
    switch(True)
    expect(page.get_by_role("button", name="On duty", exact=True)).to_be_visible()
    note.fill("Forget it.")
    switch(False)
    expect(unsent).to_be_visible()
    note.fill("")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Go on duty")).to_be_visible()

    switch(True)
    page.get_by_role("button", name="On duty", exact=True).click()
    note.fill("The gas leak is done.")
    switch(False)
    expect(unsent).to_be_visible()
    page.get_by_role("button", name="Go off duty").click()
    expect(page.locator("#notices")).to_contain_text("Your note is on the board for the next shift.")
    expect(page.get_by_role("button", name="Go on duty")).to_be_visible()
    assert HandoverNote.objects.get().text == "The gas leak is done."


def test_focus_stays_on_the_button_of_a_note_when_another_arrives(floor: Floor, sign_in):
    dana = make.dispatcher(floor.organization, "Dana", on_duty=True)
    kim = make.dispatcher(floor.organization, "Kim", on_duty=True)
    HandoverNote.objects.create(organization=floor.organization, author=kim, text="The gas leak is done.")
    page = live(sign_in(dana, path="/board/"))
    page.get_by_role("button", name="Mark as read").focus()
    leaving = kim.memberships.get().pk
    Elsewhere(lambda: handover_notes.end_shift(leaving, "Call the Ortegas.", actor=SYSTEM)).finish()
    expect(page.locator(".handover")).to_have_count(2)
    expect(page.get_by_role("button", name="Mark as read").first).to_be_focused()


def double_click(page: Page, name: str, meanwhile: Callable[[], None]) -> None:
    """Click twice on the button, and between the clicks wait until the first one has taken effect."""
    box = page.get_by_role("button", name=name).first.bounding_box()
    assert box
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.click(*middle)
    meanwhile()
    page.mouse.down(click_count=2)
    page.mouse.up(click_count=2)
