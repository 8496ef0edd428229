"""Picking a technician's position on the map of the admin."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support import factories

pytestmark = pytest.mark.browser


def test_position_is_set_by_mouse_keyboard_and_typing(app_url, sign_in):
    organization = factories.organization("Desert Air")
    ana = factories.technician(organization, "Ana")
    page = sign_in(factories.admin(organization), path=f"/admin/technicians/technician/{ana.pk}/change/")
    latitude, longitude = page.locator("#id_lat"), page.locator("#id_lng")
    said = page.locator(".picker [role=status]")
    expect(said).to_have_text("Latitude 33.44840, longitude -112.07400")

    drawn = page.locator(".picker .map")
    drawn.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowLeft")
    assert float(latitude.input_value()) > 33.4484
    assert float(longitude.input_value()) < -112.075

    box = drawn.bounding_box()
    drawn.click(position={"x": box["width"] * 0.75, "y": box["height"] * 0.75})
    assert float(latitude.input_value()) < 33.4484
    assert float(longitude.input_value()) > -112.0
    expect(said).to_contain_text(f"Latitude {float(latitude.input_value()):.5f}")

    latitude.fill("32.2226")
    longitude.fill("-110.9747")
    expect(page.locator(".picker .place", has_text="Tucson").first).to_be_visible()
    expect(said).to_have_text("Latitude 32.22260, longitude -110.97470")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    ana.refresh_from_db()
    assert (ana.lat, ana.lng) == (32.2226, -110.9747)
