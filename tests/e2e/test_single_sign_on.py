"""Single sign-on in a real browser, with a provider that asks: a sign-in, a trial and an outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.urls import reverse
from playwright.sync_api import Browser, Page, expect

from accounts.models import IdentityProvider, Membership
from tests.accounts.single_sign_on import configure
from tests.e2e.screens import SCREENS
from tests.support import factories as make
from tests.support.openid_provider import OpenIdProvider
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def idp() -> Iterator[OpenIdProvider]:
    with OpenIdProvider(asks=True) as provider:
        yield provider


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def confirm_trial(page: Page, row: IdentityProvider) -> str:
    """Submit the dialog on the page of the configuration. Return the address to which it leads."""
    action = reverse("admin:accounts_identityprovider_try_configuration", args=[row.pk])
    send = """async action => {
        const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
        const body = new URLSearchParams({_form_submitted: "True", csrfmiddlewaretoken: token});
        return (await fetch(action, {method: "POST", body})).headers.get("HX-Redirect");
    }"""
    return str(page.evaluate(send, action))


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_member_signs_in_at_the_provider(
    app_url: str, chromium: Browser, idp: OpenIdProvider, width: int, scheme: Any
) -> None:
    acme = make.organization("Acme Heating", slug="acme")
    person = make.user("Dana", email="dana@acme.example")
    Membership.objects.create(organization=acme, user=person, role="dispatcher")
    configure(acme, idp)
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: "Content Security Policy" in said.text and errors.append(said.text))

    page.goto(f"{app_url}/board/?text=boiler")
    page.get_by_role("link", name="Use single sign-on").click()
    page.get_by_label("Your email").fill("dana@elsewhere.example")
    page.keyboard.press("Enter")
    expect(page.get_by_text("There is no single sign-on")).to_be_visible()
    assert fits(page)
    page.get_by_label("Your email").fill("Dana@acme.example")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Sign in as dana@acme.example").click()
    page.wait_for_url(f"{app_url}/board/?text=boiler")

    page.goto(f"{app_url}/account/second-factor/")
    expect(page.get_by_role("heading", name="Not available with single sign-on")).to_be_visible()
    assert fits(page)
    context.close()
    assert not errors


def test_admin_tries_a_configuration_and_sees_why_it_fails(
    app_url: str, sign_in: Callable[..., Page], idp: OpenIdProvider
) -> None:
    acme = make.organization("Acme Heating", slug="acme")
    row = configure(acme, idp, newcomer_role="dispatcher")
    page = sign_in(make.admin(acme), width=390, path=f"/admin/accounts/identityprovider/{row.pk}/change/")
    page.goto(f"{app_url}{confirm_trial(page, row)}")
    page.get_by_role("link", name="Sign in as dana@acme.example").click()
    expect(page.get_by_text("would join as Dispatcher")).to_be_visible()
    assert fits(page)
    idp.stop()
    page.goto(f"{app_url}/account/sso/{row.pk}/?try=1")
    expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    assert fits(page)
