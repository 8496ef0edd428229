"""Pages run the site's own scripts and no others, in a browser."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect

from accounts import invitations, services
from dispatch.core.events import SYSTEM
from tests.support import factories as make

pytestmark = pytest.mark.browser

# The source of scripts that a policy allows besides the site's files.
NOTHING, ALPINE = "", " 'unsafe-eval'"


def script_sources(policy: str) -> str:
    return re.search(r"script-src 'self'([^;]*)", policy)[1]


def test_scripts_of_a_page_run_and_injected_ones_do_not(chromium: Browser, app_url: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{app_url}/nowhere/")
    inject = "s => { const e = document.createElement('script'); Object.assign(e, s); document.body.append(e) }"
    page.evaluate(inject, {"textContent": "window.injected = 1"})
    page.evaluate(inject, {"src": "data:text/javascript,window.injected=1"})
    page.evaluate("() => { document.body.insertAdjacentHTML('beforeend', '<img src=x: onerror=\"injected=1\">') }")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("() => window.injected") is None
    context.close()


def test_pages_of_libraries_work_under_their_policy(sign_in, app_url: str) -> None:
    operator = make.user(is_superuser=True)
    page = sign_in(operator, path="/admin/rq/")
    expect(page.get_by_text("dispatch-timeout-queue").first).to_be_visible()
    docs = page.goto(f"{app_url}/api/v1/docs/")
    assert script_sources(docs.all_headers()["content-security-policy"]) == NOTHING
    expect(page.locator("a[href='#/campaigns/campaigns_pause_create']")).to_be_visible()
    admin = page.goto(f"{app_url}/admin/")
    assert script_sources(admin.all_headers()["content-security-policy"]) == ALPINE


def test_a_stranger_joins_under_the_policy(sign_in, app_url: str) -> None:
    organization = make.organization()
    membership, _ = services.add_member(
        organization, email="new@example.com", name="Nina", role="dispatcher", actor=SYSTEM
    )
    link = invitations.send_invitation(membership, lambda path: path).link
    page = sign_in(make.dispatcher(organization), path="/board/")
    page.context.clear_cookies()
    joined = page.goto(app_url + link)
    assert script_sources(joined.all_headers()["content-security-policy"]) == ALPINE
    expect(page.get_by_role("button", name=re.compile("join", re.IGNORECASE))).to_be_visible()
    page.goto(f"{app_url}/admin/login/")
    expect(page.get_by_role("button", name=re.compile("log in|sign in", re.IGNORECASE))).to_be_visible()


@pytest.mark.django_db
def test_every_answer_has_a_policy(client: Client) -> None:
    for path in ("/", "/api/v1/me/", "/nowhere/", "/static/dispatch/board.js", "/board/", "/join/wrong/"):
        assert "default-src 'self'" in client.get(path)["Content-Security-Policy"], path
