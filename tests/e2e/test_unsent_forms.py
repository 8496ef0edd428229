"""What is entered for a new job and a hand-over note stays when the page is left, and ends with signing out."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Page, Route, expect

from accounts.models import HandoverNote, User
from dispatch.jobs.models import Submission
from tests.console.conftest import BACKEND
from tests.e2e.test_board import live, make_pending, tell_people
from tests.harness.jobs import Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser

NOTE = "The gas leak is done."


def new_job(page: Page, **entered: str):
    page.keyboard.press("n")
    form = page.locator("#new-job-form")
    expect(form.get_by_label("Customer's phone")).to_be_focused()
    for label, text in entered.items():
        form.get_by_label(label.replace("_", " ")).fill(text)
    return form


def enter(page: Page) -> None:
    form = new_job(page, phone="(602) 555-0178", name="Ida Whitfield", Address=make.PHOENIX.address)
    form.get_by_label("Service").select_option(index=1)


def is_still_there(page: Page) -> None:
    form = new_job(page)
    expect(form.get_by_label("Customer's phone")).to_have_value("(602) 555-0178")
    expect(form.get_by_label("Customer's name")).to_have_value("Ida Whitfield")
    expect(form.get_by_label("Address")).to_have_value(make.PHOENIX.address)
    expect(form.get_by_label("Service")).not_to_have_value("")
    expect(page.locator("#notices")).to_contain_text("What you entered before is still here.")


def is_empty(page: Page) -> None:
    form = new_job(page)
    expect(form.get_by_label("Customer's phone")).to_have_value("")
    expect(form.get_by_label("Customer's name")).to_have_value("")


def drafts(page: Page) -> str:
    return page.evaluate("Object.keys(sessionStorage).filter(key => key.startsWith('dispatch.draft.')).join()")


def continue_as(page: Page, user: User, app_url: str, path: str = "/board/") -> None:
    """Let the browser have a new session of the user, as after the sign-in page, and open a page."""
    session = Client()
    session.force_login(user, backend=BACKEND)
    name = settings.SESSION_COOKIE_NAME
    page.context.add_cookies([{"name": name, "value": session.cookies[name].value, "url": app_url}])
    page.goto(app_url + path)


def test_new_job_being_entered_survives_other_pages(floor: Floor, sign_in):
    pending = make_pending(floor)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana", on_duty=True), path="/board/"))
    tell_people()
    enter(page)
    page.locator("#alert-bar").get_by_role("link", name="Open job").click()
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(pending.pk))
    is_still_there(page)
    page.reload()
    is_still_there(live(page))
    page.goto(page.url.replace("/board/", "/board/new/").partition("?")[0])
    expect(page.get_by_label("Customer's name")).to_have_value("Ida Whitfield")
    page.go_back()
    is_still_there(live(page))
    page.locator("#ask-back").click()
    expect(page.locator("#new-job-form")).to_have_count(0)
    page.reload()
    is_empty(live(page))


def test_new_job_being_entered_survives_the_end_of_the_session(floor: Floor, app_url, sign_in):
    dana, kim = make.dispatcher(floor.organization, "Dana"), make.dispatcher(floor.organization, "Kim")
    page = live(sign_in(dana, path="/board/"))
    enter(page)
    page.context.clear_cookies(name=settings.SESSION_COOKIE_NAME)
    page.get_by_role("button", name="Create job").click()
    page.wait_for_url(re.compile("login"))
    continue_as(page, dana, app_url)
    is_still_there(live(page))
    continue_as(page, kim, app_url)
    assert drafts(page) == "", "the customer's data is gone with the first page of another user"
    is_empty(live(page))
    assert not Submission.objects.exists()


def test_new_job_that_was_created_is_not_entered_again(floor: Floor, sign_in):
    floor.technician("Ann")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    enter(page)

    def lose_reply(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/board/new/", lose_reply)
    with page.expect_event("requestfailed"):
        page.get_by_role("button", name="Create job").click()
    page.unroute("**/board/new/")
    page.reload()
    is_still_there(live(page))
    page.get_by_role("button", name="Create job").click()
    expect(page.locator("#new-job-form")).to_have_count(0)
    assert Submission.objects.count() == 1
    page.reload()
    is_empty(live(page))


@pytest.mark.parametrize("path", ["/board/", "/leads/", "/admin/", "/account/second-factor/"])
def test_signing_out_anywhere_ends_what_was_entered(floor: Floor, sign_in, path):
    dana = (
        make.admin(floor.organization, "Dana")
        if path == "/admin/"
        else make.dispatcher(floor.organization, "Dana")
    )
    page = live(sign_in(dana, path="/board/"))
    enter(page)
    assert drafts(page)
    page.goto(page.url.partition("/board/")[0] + path)
    assert drafts(page), "still the same user"
    page.locator("form[action$='/logout/']").first.evaluate("form => form.requestSubmit()")
    page.wait_for_url(re.compile("logout|login"))
    assert drafts(page) == ""


def test_live_update_while_signing_out_stores_nothing(floor: Floor, sign_in):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana", on_duty=True), path="/board/"))
    page.get_by_role("button", name="On duty").click()
    page.get_by_label("What should the next shift know?").fill(NOTE)
    assert drafts(page)
    update = "() => document.addEventListener('submit', () => htmx.trigger(document.body, 'htmx:afterSettle', {}))"
    page.evaluate(update)
    page.locator("form[action$='/logout/']").first.evaluate("form => form.requestSubmit()")
    page.wait_for_url(re.compile("logout|login"))
    assert drafts(page) == ""


def test_first_page_of_a_superuser_without_an_organization_ends_what_was_entered(floor: Floor, app_url, sign_in):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    enter(page)
    assert drafts(page)
    make.organization()
    continue_as(page, make.user("Root", is_superuser=True), app_url, path="/admin/")
    assert drafts(page) == ""


def test_hand_over_note_survives_a_reload_and_ends_when_it_is_sent(floor: Floor, sign_in):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana", on_duty=True), path="/board/"))
    page.get_by_role("button", name="On duty").click()
    page.get_by_label("What should the next shift know?").fill(NOTE)
    page.goto(page.url.replace("/board/", "/reports/"))
    page.get_by_role("button", name="On duty").click()
    expect(page.get_by_label("What should the next shift know?")).to_have_value(NOTE)
    page.get_by_role("button", name="Go off duty").click()
    expect(page.get_by_role("button", name="Go on duty")).to_be_visible()
    assert HandoverNote.objects.get().text == NOTE
    page.reload()
    live(page).get_by_role("button", name="Go on duty").click()
    page.get_by_role("button", name="On duty", exact=True).click()
    expect(page.get_by_label("What should the next shift know?")).to_have_value("")
    assert drafts(page) == ""
