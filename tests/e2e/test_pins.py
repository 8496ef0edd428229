"""A technician's PIN in a real browser: on their own page and in the admin."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dispatch.jobs import signed_links
from dispatch.technicians import services as technicians
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_technician_sets_a_pin(floor, sign_in, width, scheme):
    ann = floor.technician("Ann Whitaker")
    path = signed_links.technician_url(ann).partition("/t/")[2]
    page = sign_in(make.dispatcher(floor.organization), path=f"/t/{path}", width=width, scheme=scheme)
    page.get_by_label("PIN (4 to 8 digits)").fill("1234")
    page.get_by_role("button", name="Set PIN").click()
    expect(page.get_by_role("alert")).to_contain_text("Too easy to guess")
    page.get_by_label("PIN (4 to 8 digits)").fill("4826")
    page.get_by_role("button", name="Set PIN").click()
    expect(page.get_by_role("status").first).to_contain_text("Your PIN is set")
    assert technicians.check_pin(ann.pk, "4826")
    page.locator("#pin-title").scroll_into_view_if_needed()
    shot(page, f"pin-page-{width}-{scheme}")
    page.get_by_role("button", name="Remove PIN").click()
    expect(page.get_by_role("status").first).to_contain_text("Your PIN is removed")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_an_admin_sets_a_pin(floor, sign_in, width, scheme):
    ann = floor.technician("Ann Whitaker")
    path = f"/admin/technicians/technician/{ann.pk}/change/"
    page = sign_in(make.admin(floor.organization), path=path, width=width, scheme=scheme)
    page.get_by_label("New PIN").fill("4826")
    shot(page, f"pin-admin-{width}-{scheme}")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator("body")).to_contain_text("A PIN is set.")
    assert technicians.check_pin(ann.pk, "4826")
