"""A dispatcher saves a view of the board, and opens the board with it, in a real browser and by keyboard."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from accounts.models import Membership
from accounts.saved_views.services import save_view
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live
from tests.harness.jobs import Floor
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

LARGE, *OTHERS = SCREENS
SOAKED = [pytest.param(*getattr(one, "values", one), marks=pytest.mark.soak) for one in OTHERS]

SECTIONS_SHOW_ALL = """
[...document.querySelectorAll('.as-list > .list')].every(part => part.scrollHeight <= part.clientHeight + 1)
"""


def test_the_name_of_a_view_stays_while_the_menu_is_refreshed(floor: Floor, sign_in):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    held = []

    def hold_menu(route) -> None:
        if route.request.method == "GET":
            held.append(route)
        else:
            route.continue_()

    page.route("**/board/views/", hold_menu)
    page.get_by_label("City or ZIP code").fill("Tempe")
    expect(page).to_have_url(re.compile("area=Tempe"))
    page.locator("#views > summary").click()
    page.get_by_label("Save this view as").fill("East")
    wait_until(lambda: bool(held) or page.wait_for_timeout(20), message="the menu is requested")
    held.pop().continue_()
    expect(page.locator("#views-menu form.save [name=query]")).to_have_value("area=Tempe")
    expect(page.get_by_label("Save this view as")).to_have_value("East")
    page.get_by_label("City or ZIP code").fill("Mesa")
    expect(page).to_have_url(re.compile("area=Mesa"))
    wait_until(lambda: bool(held) or page.wait_for_timeout(20), message="the menu is requested")
    page.locator("#views > summary").click()  # the menu has closed when the focus left it
    page.get_by_label("Save this view as").press("Enter")
    expect(page.locator("#notices")).to_contain_text("View “East” saved.")
    saved = page.locator("#views-menu li").get_by_role("link", name="East")
    expect(saved).to_have_attribute("href", re.compile("area=Mesa"))
    expect(page.locator("#views > summary")).to_have_text(re.compile("Views: East"))
    expect(page.get_by_label("Save this view as")).to_have_value("")


def test_each_form_of_the_menu_reports_its_outcome(floor: Floor, sign_in):
    dana = make.dispatcher(floor.organization, "Dana")
    for name, query in (("East", "area=Tempe"), ("West", "area=Avondale")):
        save_view(floor.organization, dana, Membership.Role.DISPATCHER, name, query, is_shared=False)
    page = live(sign_in(dana, path="/board/?area=Tempe"))
    held: list[Route] = []
    page.route("**/board/views/**", lambda it: held.append(it) if it.request.method == "POST" else it.continue_())

    def let_go() -> None:
        wait_until(lambda: bool(held) or page.wait_for_timeout(20), message="a form is sent")
        held.pop().continue_()

    page.locator("#views > summary").click()
    page.get_by_label("Change East").click()
    page.get_by_label("New name").first.fill("West")
    page.get_by_role("button", name="Rename").first.click()
    page.get_by_role("button", name="Open the board with it").first.click()
    page.get_by_label("Save this view as").fill("Mine")
    page.get_by_label("Save this view as").press("Enter")
    refused = "A view with this name already exists. Choose another name."
    for note in (refused, "Your board opens with “East”.", "View “Mine” saved."):
        let_go()
        expect(page.locator("#notices")).to_contain_text(note)
    menu = page.locator("#views-menu")
    expect(menu.get_by_role("link", name="Mine")).to_be_visible()
    expect(menu).to_contain_text("opens first")
    expect(page.get_by_label("Save this view as")).to_have_value("")


@pytest.mark.parametrize(("width", "scheme"), [LARGE, *SOAKED])
def test_view_is_saved_and_opens_first(floor: Floor, sign_in, width, scheme):
    floor.crew("Ann")
    for street in ("1 Main St, Tempe, AZ 85281", "2 Oak St, Mesa, AZ 85201"):
        floor.started(customer_phone=make.phone(), address=street)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/", width=width, scheme=scheme))
    page.get_by_label("City or ZIP code").fill("Tempe")
    expect(page.locator("[data-list]").get_by_text("2 Oak St")).to_have_count(0)
    page.locator("#views > summary").press("Enter")
    page.get_by_label("Save this view as").fill("East <side>")
    page.get_by_label("Save this view as").press("Enter")
    expect(page.locator("#notices")).to_contain_text("View “East <side>” saved.")
    page.get_by_label("Change East <side>").press("Enter")
    accessible(page)
    shot(page, f"views-{width}-{scheme}")
    page.get_by_role("button", name="Open the board with it").press("Enter")
    expect(page.locator("#views")).to_contain_text("opens first")
    page.get_by_role("link", name="List", exact=True).press("Enter")
    expect(page.locator("#lists.as-list")).to_be_visible()
    shot(page, f"views-list-{width}-{scheme}")
    page.set_viewport_size({"width": width, "height": 420})
    assert page.evaluate(SECTIONS_SHOW_ALL), "the sections of the list do not overlap"
    page.goto(page.url.partition("?")[0])
    expect(page).to_have_url(re.compile(r"\?area=Tempe$"))
    expect(page.locator("#views > summary")).to_contain_text("East <side>")
    page.get_by_label("City or ZIP code").fill("Mesa")
    expect(page.locator("#views > summary")).to_have_text(re.compile(r"Views\s*$"))
    page.locator("#clear").click()
    expect(page.locator("[data-list]").get_by_text("2 Oak St").first).to_be_attached()


def test_layout_of_the_menu_keeps_the_map_that_was_opened_or_closed(floor: Floor, sign_in):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    menu = page.locator("#views-menu")
    for kept, layout, query in (("map=1", "List", "map=1&layout=list"), ("layout=list", "Cards", "view=all")):
        page.locator("#map-button").click()
        expect(menu.locator("[name=query]")).to_have_value(kept)
        page.locator("#views > summary").click()
        menu.get_by_role("link", name=layout, exact=True).click()
        expect(page).to_have_url(re.compile(rf"/board/\?{query}$"))
        live(page)


def test_technician_of_the_strip_keeps_the_layout_and_the_filters(floor, sign_in):
    ann, bo = floor.crew("Ann", "Bo")
    make.service_type(floor.organization, "plumbing", name="Plumbing")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/?layout=list&columns=assigned"))
    crew = page.locator("#crew-slot")
    page.get_by_label("Service", exact=True).select_option("plumbing")
    expect(page).to_have_url(re.compile("service=plumbing"))
    page.keyboard.press("g")
    page.keyboard.press("m")
    expect(page).to_have_url(re.compile("map=1"))
    crew.locator("summary", has_text="Available").click()
    crew.get_by_role("link", name="Ann").click()
    expect(page.get_by_role("checkbox", name="Ann")).to_be_checked()
    kept = {"layout": "list", "columns": "assigned", "service": "plumbing", "map": "1"}
    assert query_of(page) == {**kept, "technician": str(ann.pk)}
    live(page)
    crew.locator("summary", has_text="Available").click()
    crew.get_by_role("link", name="Bo").press("Enter")
    expect(page.get_by_role("checkbox", name="Bo")).to_be_checked()
    assert query_of(page) == {**kept, "technician": str(bo.pk)}


@pytest.mark.parametrize("link", ["#clear", "#clear-hidden"])
def test_clearing_the_filters_keeps_the_open_form_and_the_map(floor: Floor, sign_in, link: str):
    tempe, mesa = (
        floor.started(customer_phone=make.phone(), address=street)
        for street in ("1 Main St, Tempe, AZ 85281", "2 Oak St, Mesa, AZ 85201")
    )
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={tempe.pk}&map=1"))
    page.get_by_label("City or ZIP code").fill("Tempe")
    attention = page.locator('[data-list="attention"]')
    expect(attention.locator(f'[data-id="job-{mesa.pk}"]')).to_have_count(0)
    page.locator("#act-assign").click()
    page.locator("#ask").get_by_label("Note").fill("Gate code 4411")
    page.locator(link).click()
    expect(attention.locator(f'[data-id="job-{mesa.pk}"]')).to_be_visible()
    expect(page.get_by_label("City or ZIP code")).to_have_value("")
    expect(page.locator("#clear")).to_be_hidden()
    expect(page.locator("#ask").get_by_label("Note")).to_have_value("Gate code 4411")
    expect(page.locator("#map")).to_be_visible()
    assert query_of(page) == {"job": str(tempe.pk), "map": "1", "view": "all"}
    page.evaluate("history.back()")
    expect(page.get_by_label("City or ZIP code")).to_have_value("Tempe")
    expect(attention.locator(f'[data-id="job-{mesa.pk}"]')).to_have_count(0)
    assert page.evaluate("window.neverReloaded")


def query_of(page: Page) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(page.url).query))
