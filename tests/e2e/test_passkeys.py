"""A passkey in a real browser: added, used as the second factor, and instead of the password."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support import factories as make
from tests.support.factories import PASSWORD
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AUTHENTICATOR = {
    "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
    "isUserVerified": True, "automaticPresenceSimulation": True,
}  # fmt: skip


def test_passkey_is_a_second_factor_and_replaces_the_password(
    app_url: str, chromium: Browser, settings: Any
) -> None:
    person = make.dispatcher(make.organization(requires_second_factor=True), "Dana")
    site = app_url.replace("127.0.0.1", "localhost")  # passkeys belong to names, not to addresses
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "localhost"]
    context = chromium.new_context(viewport={"width": 390, "height": 900})
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: "Content Security Policy" in said.text and errors.append(said.text))
    device = context.new_cdp_session(page)
    device.send("WebAuthn.enable")
    device.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})

    def enter_password() -> None:
        page.goto(f"{site}/admin/login/?next=/board/")
        page.get_by_label("Email").fill(person.email)
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")

    enter_password()
    expect(page.get_by_text("You need a second factor here")).to_be_visible()
    page.get_by_role("link", name="Add a passkey").click()
    page.get_by_role("button", name="Add passkey").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    context.clear_cookies()

    enter_password()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url(f"{site}/board/")
    context.clear_cookies()

    page.goto(f"{site}/admin/login/?next=/board/")
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url(f"{site}/board/")
    context.close()
    assert not errors
