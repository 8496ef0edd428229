"""A search on the board takes effect, also if its request failed."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from dispatch.jobs.models import Job
from tests.e2e.test_board import card, live, make_pending
from tests.harness.jobs import Floor
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

SEARCHES = re.compile(r"/board/\?text=")


@pytest.fixture
def jobs(floor: Floor) -> tuple[Job, Job]:
    """A job that a search for its customer finds, and one that it does not find."""
    found, other = make_pending(floor), make_pending(floor)
    Job.objects.filter(pk=found.pk).update(customer_name="Zacharias Quill")
    return found, other


def is_searched(page: Page, jobs: tuple[Job, Job]) -> None:
    found, other = jobs
    expect(page).to_have_url(re.compile("text=quill"))
    expect(card(page, "attention", found)).to_be_visible()
    expect(card(page, "attention", other)).to_have_count(0)
    expect(page.get_by_label("Number, customer, technician")).to_have_value("quill")
    expect(page.locator("#clear")).to_be_visible()


def test_search_without_a_connection_is_made_when_it_is_back(floor: Floor, sign_in, jobs):
    page = sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/")
    sockets: list[WebSocketRoute] = []
    is_down = False

    def connect(socket: WebSocketRoute) -> None:
        if is_down:
            return socket.close()
        socket.connect_to_server()
        return sockets.append(socket)

    page.route_web_socket(re.compile("/ws/"), connect)
    page.reload()
    live(page)
    is_down = True
    page.context.set_offline(True)
    sockets[-1].close()
    expect(page.locator("html")).to_have_attribute("data-live", re.compile("reconnecting|stale"))
    page.keyboard.press("/")
    with page.expect_event("requestfailed", lambda request: bool(SEARCHES.search(request.url))):
        page.keyboard.insert_text("quill")
    expect(page.locator("#notices")).to_contain_text("No connection. The filters apply when it is back.")
    is_down = False
    page.context.set_offline(False)
    live(page)
    is_searched(page, jobs)


def test_search_that_the_server_refused_is_made_again(floor: Floor, sign_in, jobs):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    page.route(SEARCHES, lambda route: route.fulfill(status=503), times=1)
    page.keyboard.press("/")
    with page.expect_response(lambda response: response.status == 503):
        page.keyboard.insert_text("quill")
    is_searched(page, jobs)


def test_search_that_always_fails_is_repeated_more_and_more_rarely(floor: Floor, sign_in, jobs):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    failed: list[Route] = []

    def fail(route: Route) -> None:
        failed.append(route)
        route.fulfill(status=500)

    page.route(SEARCHES, fail)
    page.evaluate("answered = 0; document.addEventListener('htmx:responseError', () => { answered += 1; })")
    page.clock.install()
    page.keyboard.press("/")
    page.keyboard.insert_text("quill")
    for _ in range(40):
        page.clock.run_for(1_000)
        wait_until(lambda: page.evaluate("answered") == len(failed))
    assert 3 <= len(failed) <= 8
    page.unroute(SEARCHES)
    page.clock.run_for(25_000)
    is_searched(page, jobs)
