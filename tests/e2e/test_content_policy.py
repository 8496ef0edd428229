"""Pages run the site's own scripts and no others, in a browser."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
import unfold
from django.test import Client
from playwright.sync_api import Browser, expect

from accounts import invitations, services
from dispatch.core.events import SYSTEM
from tests.support import factories as make

pytestmark = pytest.mark.browser

SCRIPTS = "script-src 'self';"
# Collects what the policy refuses, and errors of expressions.
WATCH = """
window.refused = []
document.addEventListener("securitypolicyviolation", e => window.refused.push(e.effectiveDirective + e.blockedURI))
window.addEventListener('error', e => window.refused.push(e.message))
"""


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
    assert SCRIPTS in docs.all_headers()["content-security-policy"]
    expect(page.locator("a[href='#/alerts/alerts_acknowledge_create']")).to_be_visible()


def test_admin_works_without_compiled_expressions(sign_in, app_url: str) -> None:
    organization = make.organization()
    make.technician(organization, "Ann")
    page = sign_in(make.admin(organization), path="/board/")
    page.add_init_script(WATCH)
    admin = page.goto(f"{app_url}/admin/")
    assert SCRIPTS in admin.all_headers()["content-security-policy"]
    page.locator("[x-on\\:click='openUserLinks = !openUserLinks']").first.click()
    expect(page.locator("[x-show=openUserLinks]").first).to_be_visible()
    for theme in ("light", "dark"):  # from the browser's own
        page.keyboard.press("Control+e")
        expect(page.locator("html")).to_have_class(re.compile(rf"\b{theme}\b"))

    page.keyboard.press("Control+k")
    page.locator("#search-input-command").press_sequentially("technicians")
    found = page.locator("#command-results-list li", has_text="Technicians").first
    expect(found).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(found).to_have_class(re.compile(r"\bactive\b"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin/technicians/technician/")
    actions = page.locator("select[name=action]")
    page.locator("input.action-select").first.check()
    expect(actions).to_be_visible()
    expect(page.locator("button[name=index]")).to_be_hidden()
    actions.select_option(index=1)  # x-model and x-show
    expect(page.locator("button[name=index]")).to_be_visible()

    pages = (
        "",
        "technicians/technician/add/",
        "accounts/organization/",
        "accounts/membership/",
        "telephony/call/",
    )
    for path in (*pages, "notifications/escalationpolicy/add/", "leads/campaign/add/", "outbox/endpoint/add/"):
        page.goto(f"{app_url}/admin/{path}")
        expect(page.locator("html")).to_have_class(re.compile(r"\bdark\b"))  # the theme is stored
        assert page.evaluate("() => window.refused") == [], path


def theme_expressions() -> list[str]:
    """Return the expressions of Alpine's attributes in the theme's templates, with names in place of values."""
    attribute = re.compile(
        r'(?<!h)x-(?:data|init|bind|on|show|if|text|model|resize)[\w:.-]*="((?:\{%.*?%\}|\{\{.*?\}\}|[^"])*)"',
        re.S,
    )
    found = set()
    for path in (Path(unfold.__file__).parent / "templates").rglob("*.html"):
        for expression in attribute.findall(path.read_text()):
            plain = re.sub(r"\{%\s*(if|else|elif|endif)\b.*?%\}", "", expression).replace("truefalse", "true")
            found.add(html.unescape(re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "name", plain, flags=re.S)))
    return sorted(found)


def test_every_expression_of_the_theme_is_understood(sign_in) -> None:
    """An upgrade of the theme may bring expressions that admin_expressions.js cannot evaluate."""
    page = sign_in(make.admin(make.organization()), path="/admin/")
    expressions = theme_expressions()
    assert len(expressions) > 100
    check = "all => all.filter(one => { try { parseAdminExpression(one) } catch { return true } })"
    assert page.evaluate(check, expressions) == []


def test_injected_expressions_reach_nothing_of_the_page(sign_in, app_url: str) -> None:
    page = sign_in(make.admin(make.organization()), path="/admin/").context.new_page()
    page.goto(f"{app_url}/admin/")
    for stolen in ("window.stolen = 1", "document.title = 'stolen'", "constructor.constructor('stolen=1')()",
                   "$el.ownerDocument.defaultView.stolen = 1", "$el.innerHTML = 'stolen'",
                   "asked = 0; trick = {toString: one => asked ? 'ownerDocument' : (asked = 1) && 'x'};"
                   " $el[trick].title = 'stolen'"):  # fmt: skip
        page.evaluate(
            "s => { const e = document.createElement('div'); e.setAttribute('x-data', '{}');"
            " e.setAttribute('x-init', s); document.body.append(e) }",
            stolen,
        )
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("() => [window.stolen, document.title.includes('stolen')]") == [None, False]
    assert page.get_by_text("stolen", exact=True).count() == 0


def test_a_stranger_joins_under_the_policy(sign_in, app_url: str) -> None:
    organization = make.organization()
    membership, _ = services.add_member(
        organization, email="new@example.com", name="Nina", role="dispatcher", actor=SYSTEM
    )
    link = invitations.send_invitation(membership).link
    page = sign_in(make.dispatcher(organization), path="/board/")
    page.goto("about:blank")  # the board would go to the sign-in page
    page.context.clear_cookies()
    joined = page.goto(link)
    assert SCRIPTS in joined.all_headers()["content-security-policy"]
    expect(page.get_by_role("button", name=re.compile("join", re.IGNORECASE))).to_be_visible()
    page.goto(f"{app_url}/admin/login/")
    expect(page.get_by_role("button", name=re.compile("log in|sign in", re.IGNORECASE))).to_be_visible()


@pytest.mark.django_db
def test_every_answer_has_a_policy(client: Client) -> None:
    for path in ("/", "/api/v1/me/", "/nowhere/", "/static/dispatch/board.js", "/board/", "/join/wrong/"):
        assert "default-src 'self'" in client.get(path)["Content-Security-Policy"], path
