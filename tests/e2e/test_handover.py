"""Hand-over notes in browsers: written at the end of a shift, and read by the next."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

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
