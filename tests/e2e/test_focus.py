"""The focus stays where a keyboard user works, whatever an action or a live update replaces."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dispatch.jobs.models import Job
from tests.e2e.test_board import live, make_pending, tell_people
from tests.harness.jobs import Floor
from tests.phones import ignore
from tests.support import factories as make

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
