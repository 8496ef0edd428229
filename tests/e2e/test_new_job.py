"""A dispatcher with a customer on the phone creates a job in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from dispatch.jobs.models import Job
from tests.core.threads import Elsewhere
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live
from tests.harness.jobs import Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_job_is_created_while_the_customer_is_on_the_phone(floor: Floor, sign_in, width, scheme):
    floor.crew("Ann", "Bob")
    earlier = floor.started(customer_phone="+16025550177", customer_name="Ida Whitfield")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/", width=width, scheme=scheme))
    page.keyboard.press("n")
    form = page.locator("#new-job-form")
    phone = form.get_by_label("Customer's phone")
    expect(phone).to_be_focused()
    regions = form.locator("[aria-live]")
    found = regions.evaluate_all("all => all.map((one) => (one.wasEmpty = true) && getComputedStyle(one).display)")
    assert found == ["block", "block"], "screen readers know the regions before they are filled"
    phone.fill("(602) 555-0177")
    phone.press("Tab")
    expect(form.get_by_label("Customer's name")).to_have_value("Ida Whitfield")
    phone.fill("(602) 555-0178")
    expect(form.get_by_label("Customer's name")).to_have_value("")
    phone.fill("(602) 555-0177")
    phone.press("Tab")
    expect(page.locator(".earlier")).to_contain_text(f"#{earlier.pk}")
    expect(form.get_by_label("Customer's name")).to_have_value("Ida Whitfield")
    expect(form.get_by_label("Address")).to_have_value(earlier.address)
    assert regions.evaluate_all("all => all.map((one) => one.wasEmpty)") == [True, True], "the same elements"
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    page.keyboard.press("n")
    expect(form.get_by_label("Customer's name")).to_have_value("Ida Whitfield")
    expect(phone).to_have_value("(602) 555-0177")
    create = page.get_by_role("button", name="Create job")
    create.click()
    expect(page.locator("#refused")).to_contain_text("No job was created")
    expect(form.get_by_label("Customer's name")).to_have_value("Ida Whitfield")
    form.get_by_label("Service").select_option(index=1)
    expect(page.locator("#new-job-nearby")).to_contain_text("available within")
    accessible(page)
    shot(page, f"new-job-{width}-{scheme}")
    create.click()
    expect(page.locator("#drawer-title")).to_contain_text(re.compile("Request|#"))
    Elsewhere(floor.work).finish()
    made = Job.objects.latest("pk")
    assert made != earlier
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(made.pk))
    expect(page).to_have_url(re.compile(rf"job={made.pk}"))
    expect(page.locator("#notices")).to_contain_text(f"Job #{made.pk} created.")
    page.keyboard.press("n")
    expect(phone).to_have_value("")


def test_board_keeps_its_filters_and_layout_when_a_job_is_created(floor: Floor, sign_in):
    floor.technician("Ann")
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path="/board/?priority=emergency&layout=compact&map=1"))
    with page.expect_response("**/board/new/facts/"):
        page.keyboard.press("n")
    form = page.locator("#new-job-form")
    page.route("**/board/new/facts/", lambda route: route.abort(), times=1)
    form.get_by_label("Customer's phone").fill("(602) 555-0178")
    expect(page.locator("#notices")).to_contain_text("The server could not be reached. Nothing was changed.")
    form.get_by_label("Customer's name").fill("Ida Whitfield")
    form.get_by_label("Address").fill(make.PHOENIX.address)
    form.get_by_label("Service").select_option(index=1)
    page.get_by_role("button", name="Create job").click()
    expect(page.locator("#drawer-title")).to_contain_text(re.compile("Request|#"))
    Elsewhere(floor.work).finish()
    expect(page.locator("#notices")).to_contain_text("created.")
    made = Job.objects.get()
    expect(page).to_have_url(re.compile(rf"\?priority=emergency&layout=compact&map=1&job={made.pk}$"))


def test_key_n_opens_a_new_job_while_another_job_is_corrected(floor: Floor, sign_in):
    job = floor.started(customer_phone="+16235550301")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={job.pk}"))
    page.locator("#act-correct").click()
    corrected = page.locator("#ask").get_by_label("Customer's phone")
    corrected.fill("(623) 555-0302")
    page.locator("#ask-title").click()
    expect(corrected).not_to_be_focused()
    page.keyboard.press("n")
    expect(page.locator("#new-job-form").get_by_label("Customer's phone")).to_be_focused()
    page.keyboard.type("602 555 0199")
    expect(page.locator("#new-job-form").get_by_label("Customer's phone")).to_have_value("602 555 0199")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 720), (390, 844)])
def test_field_that_is_tabbed_to_is_not_behind_the_buttons(floor: Floor, sign_in, width, height):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/", width=width))
    page.set_viewport_size({"width": width, "height": height})
    page.keyboard.press("n")
    expect(page.locator("#new-job-form").get_by_label("Customer's phone")).to_be_focused()
    below: dict[str, float] = {}
    for _ in range(40):
        name, pixels = page.evaluate(
            """() => {
                const field = document.activeElement, buttons = document.querySelector(".new-job .send");
                const [bottom, top] = [field.getBoundingClientRect().bottom, buttons.getBoundingClientRect().top];
                return [field.name || "", bottom - top];
            }"""
        )
        if not name:
            break
        below[name] = max(pixels, below.get(name, pixels))
        page.keyboard.press("Tab")
    assert {"customer_phone", "address", "window_from", "window_until", "preferred_technician"} <= below.keys()
    assert {name: pixels for name, pixels in below.items() if pixels > 0} == {}
