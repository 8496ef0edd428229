"""The console and a technician's page can be installed as apps, and start with the right page."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Page

from dispatch.jobs import signed_links
from tests.support import factories as make

pytestmark = pytest.mark.browser


def manifest_of(page: Page) -> dict[str, Any]:
    """Return the manifest as Chromium read it, with what Chromium requires of an app that can be installed."""
    read = page.context.new_cdp_session(page).send("Page.getAppManifest")
    assert read["errors"] == []
    manifest: dict[str, Any] = json.loads(read["data"])
    assert (manifest["name"], manifest["display"]) == ("Dispatch", "standalone")
    kinds = {(icon["sizes"], icon["purpose"]) for icon in manifest["icons"]}
    assert kinds >= {("192x192", "any"), ("512x512", "any"), ("512x512", "maskable")}
    for icon in manifest["icons"]:
        size = page.evaluate(
            "async src => { const one = new Image(); one.src = src; await one.decode();"
            " return `${one.naturalWidth}x${one.naturalHeight}` }",
            icon["src"],
        )
        assert size == icon["sizes"]
    return manifest


def test_console_is_installed_as_an_app_that_opens_the_board(floor, sign_in):
    page = sign_in(make.dispatcher(floor.organization), path="/leads/")
    manifest = manifest_of(page)
    for address in (manifest["start_url"], *(one["url"] for one in manifest["shortcuts"])):
        answer = page.goto(urljoin(page.url, address))
        assert answer is not None
        assert (answer.status, "sign-in" in page.url) == (200, False), address
    apple = page.locator("link[rel=apple-touch-icon]").get_attribute("href")
    assert page.request.get(urljoin(page.url, str(apple))).headers["content-type"] == "image/png"


def test_technician_installs_the_page_they_have_the_link_of(floor, sign_in):
    (ann,) = floor.crew("Ann")
    path = urlsplit(signed_links.technician_url(ann)).path
    page = sign_in(make.dispatcher(floor.organization), path=path, width=390)
    manifest = manifest_of(page)
    # Without a start_url, an app starts with the page from which it was installed.
    assert "start_url" not in manifest
