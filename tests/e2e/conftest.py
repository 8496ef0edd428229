"""Headless Chromium and the running application.

Without Chromium the tests are skipped; in CI that is a failure.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright

from accounts.models import Organization, User
from dispatch.core import clock
from dispatch.dev.demo import history, seed
from tests.console.conftest import BACKEND, browser  # noqa: F401
from tests.jobs.conftest import floor  # noqa: F401
from tests.support.chromium import ARGUMENTS, CHROMIUM
from tests.support.waiting import PATIENCE

# The screens of `SCREENS` that the suite uses, in turns.
TURNS = ((1440, "light"), (390, "dark"))

expect.set_options(timeout=1000 * PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Play each flow at one screen in the suite, about half of them as on a phone; the soak plays the other."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or not {"width", "scheme"} <= callspec.params.keys():
            continue
        screen = callspec.params["width"], callspec.params["scheme"]
        if screen in TURNS and screen != TURNS[zlib.crc32(item.originalname.encode()) % len(TURNS)]:
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def company() -> Organization:
    """Return the demo company with its history, whose users have dismissed the tour."""
    organization = seed.seed()
    assert history.fill(organization, "http://127.0.0.1:9/demo-receiver")
    User.objects.update(tour_dismissed_at=clock.now())
    return organization


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Start Chromium once for all tests of this folder: while it runs, no other code in this thread may await."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("No Chromium is installed, and in CI no browser test may be skipped.")
        pytest.skip("needs a Chromium: install the package `chromium` to run the browser tests")
    # Playwright keeps an event loop in this thread, which Django's async check would reject.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            yield browser
            browser.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def sign_in(chromium: Browser, app_url: str) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page as a signed-in user, in a separate browser.

    `sign_in(user, width=1440, scheme="light", path="/board/")`. A JavaScript error, or what the page's
    Content-Security-Policy refuses, fails the test.
    """
    contexts, errors = [], []

    def open_page(user: User, *, width: int = 1440, scheme: str = "light", path: str = "/admin/jobs/job/") -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: "Content Security Policy" in said.text and errors.append(said.text))
        session = Client()
        session.force_login(user, backend=BACKEND)
        name = settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": session.cookies[name].value, "url": app_url}])
        page.goto(app_url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors
