"""The receivers' portal in a browser: a link is opened, a test is sent, and a secret replaced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from dispatch.core import events
from dispatch.outbox.api.portal import portal_url
from dispatch.outbox.services import portal
from tests.e2e.screens import SCREENS
from tests.harness.outbox import World, open_world

pytestmark = pytest.mark.browser


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    with open_world() as world:
        yield world


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_receiver_opens_its_portal_and_manages_its_endpoint(
    world: World, chromium: Browser, app_url: str, width: int, scheme: str
) -> None:
    endpoint = world.endpoint("Acme ERP", event_types=["job.*"], retry_schedule_s=[])
    world.receiver.answer("bad", 500, "out of order")
    world.start()
    world.becomes(world.send_one(endpoint, "bad"), "ERROR")
    link, code = portal.create_link(world.organization, endpoint=endpoint, actor=events.SYSTEM)
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(portal_url(link, code))
    page.get_by_role("button", name="Open the portal").click()
    expect(page.get_by_role("heading", name="Acme ERP")).to_be_visible()
    page.get_by_role("button", name="Send a test message").click()
    expect(page.get_by_role("status")).to_contain_text("on its way")
    expect(page.get_by_role("main")).to_contain_text("endpoint.test")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("row", name="Error").get_by_role("link").click()
    expect(page.get_by_role("main")).to_contain_text("out of order")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("link", name="Back to Acme ERP").click()
    page.get_by_role("button", name="Replace the secret").click()
    expect(page.locator("[data-secret]")).to_contain_text("whsec_")
    assert complaints == [], "the content policy holds"
    context.close()
