"""Files and campaigns in a browser: bad lines, duplicates, a dry run and going live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from dispatch.core.events import SYSTEM
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.services import switches
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.benchmarks import noop_provider
from tests.e2e.screens import SCREENS
from tests.harness.leads import Floor
from tests.support import factories as make

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

OpenPage = Callable[..., Page]


@pytest.fixture
def leads(app_url: str, settings: Any) -> Floor:
    settings.PROVIDER_MODULES = noop_provider.MODULES
    floor = Floor()
    switches.set_dispatch(floor.organization.pk, mode="off", actor=SYSTEM)
    Campaign.objects.update(name="Fall tune-up")
    return floor


def choose(page: Page, content: str) -> None:
    page.locator("#file").set_input_files({"name": "f.csv", "mimeType": "text/csv", "buffer": content.encode()})


def fits(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_bad_phone_in_an_import_is_named_and_the_others_written(
    sign_in: OpenPage, app_url: str, width: int, scheme: str
) -> None:
    organization = make.organization("Desert Air")
    page = sign_in(make.admin(organization, "Adam"), width=width, scheme=scheme, path="/admin/")
    page.goto(f"{app_url}/admin/technicians/technician/import/")
    choose(page, "phone\n" + "," * 200_000)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("is longer than 100,000 characters. Nothing was saved.")
    choose(page, "name,phone,lat,lng\nAna,602 255 0101,33.4,-112\nBen,banana,33.4,-112\nCid,n/a,33.4,-112\n")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("body")).to_contain_text("“banana” is not a valid phone number. Write it as +16025550123.")
    fits(page, width)
    page.get_by_role("button", name="Import valid rows").click()
    expect(page.get_by_text("1 added, 0 changed. 2 rows with errors skipped.")).to_be_visible()
    assert [one.name for one in Technician.objects.of(organization)] == ["Ana"]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_an_upload_says_what_it_added_and_left_out(
    leads: Floor, sign_in: OpenPage, width: int, scheme: str
) -> None:
    leads.add("+16025550101")
    dispatcher = make.dispatcher(leads.organization, "Dora")
    page = sign_in(dispatcher, width=width, scheme=scheme, path="/leads/upload/")
    page.get_by_label("Campaign").select_option("Fall tune-up")
    choose(page, "phone,name\n602 555 0101,Ann\n6025550102,Bob\n(602) 555-0102,Bob again\nbanana,Eve\n")
    page.get_by_role("button", name="Upload").click()
    result = page.get_by_role("status").filter(has_text="added")
    expect(result).to_have_text("1 added to Fall tune-up, 2 duplicates skipped, 1 could not be added.")
    expect(page.get_by_role("row", name="5 phone")).to_contain_text("“banana”: not a phone number")
    fits(page, width)
    assert Lead.objects.count() == 2


# Presses a button twice. Returns for each time whether its form was kept from being sent.
PRESS_TWICE = """button => {
    const kept = [];
    addEventListener("submit", (event) => { kept.push(event.defaultPrevented); event.preventDefault(); });
    button.click();
    button.click();
    return kept;
}"""


def test_double_clicks_send_a_form_of_leads_once(leads: Floor, sign_in: OpenPage, app_url: str) -> None:
    page = sign_in(make.admin(leads.organization, "Adam"), path="/leads/upload/")
    page.get_by_label("Campaign").select_option("Fall tune-up")
    choose(page, "phone\n602 555 0101\n")
    assert page.get_by_role("button", name="Upload").evaluate(PRESS_TWICE) == [False, True]
    page.goto(f"{app_url}/leads/campaigns/{leads.campaign.pk}/")
    assert page.get_by_role("button", name="Call me first").evaluate(PRESS_TWICE) == [False, True]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_dry_run_keeps_the_leads_and_going_live_calls_them(
    leads: Floor, sign_in: OpenPage, app_url: str, width: int, scheme: str
) -> None:
    silent = leads.add_campaign(script="", window_from="09:00", window_until="17:00", weekdays=[0, 1, 2, 3, 4])
    Campaign.objects.filter(pk=silent.pk).update(name="Spring without words")
    leads.add_many(3)
    leads.add("+16025550199", to=silent)
    leads.work()
    page = sign_in(make.admin(leads.organization, "Adam"), width=width, scheme=scheme, path="/leads/")
    expect(page.locator("#leads")).to_contain_text("No calls are being made.")

    page.get_by_role("button", name="Start dry run").click()
    leads.step(switches.LIFTED)
    leads.work()
    expect(page.locator("#leads")).to_contain_text("Simulated in the dry run; will be called when you go live")
    row = page.get_by_role("row", name="Fall tune-up")
    expect(row).to_contain_text("Dry run")
    expect(row).not_to_contain_text("Done")
    expect(page.get_by_role("row", name="Spring without words")).to_contain_text("No script")
    fits(page, width)
    assert leads.outcomes() == {"backlog": 4}

    page.get_by_role("link", name="Go live").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Go live and call 3 people?")
    expect(page.get_by_role("main")).to_contain_text("No script: nobody is called until you write one.")
    fits(page, width)
    page.get_by_role("link", name="Cancel").click()
    assert LeadDispatch.objects.get().mode == "dry_run"
    page.get_by_role("link", name="Go live").click()
    page.get_by_role("button", name="Go live and call 3 people").click()
    expect(page.get_by_role("status").filter(has_text="Lead calling: live.")).to_be_visible()
    leads.step(switches.LIFTED)
    assert leads.work() == 3
    expect(page.get_by_role("row", name="Fall tune-up")).to_contain_text("Done")
    assert Call.objects.count() == 3
    assert leads.outcomes() == {"answered": 3, "backlog": 1}


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_admin_asks_before_going_live_and_for_a_script(
    leads: Floor, sign_in: OpenPage, app_url: str, width: int, scheme: str
) -> None:
    leads.add_many(2)
    page = sign_in(make.admin(leads.organization, "Adam"), width=width, scheme=scheme, path="/admin/")
    row = LeadDispatch.objects.get()
    page.goto(f"{app_url}/admin/leads/leaddispatch/{row.pk}/change/")
    page.get_by_label("Mode").select_option("live")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("2 people will be called now. Hours: at any hour, every day.")).to_be_visible()
    assert LeadDispatch.objects.get().mode == "off"
    page.get_by_role("checkbox", name="Go live").check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page).to_have_url(f"{app_url}/admin/leads/leaddispatch/")
    assert LeadDispatch.objects.get().mode == "live"

    page.goto(f"{app_url}/admin/leads/campaign/{leads.campaign.pk}/change/")
    page.get_by_label("Script").fill("  ")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Write a script or enter a TwiML URL")).to_be_visible()
    assert Campaign.objects.get().script == "Hello."


def test_focus_and_selection_outlast_the_updates_of_the_figures(
    leads: Floor, sign_in: OpenPage, app_url: str
) -> None:
    page = sign_in(make.admin(leads.organization, "Adam"), path="/leads/")
    for path, link, button in (
        (
            "/leads/",
            page.get_by_role("link", name="Fall tune-up"),
            page.get_by_role("button", name="Start dry run"),
        ),
        (f"/leads/campaigns/{leads.campaign.pk}/", page.get_by_role("link", name="go live"), None),
    ):
        page.goto(app_url + path)
        page.clock.install()
        page.reload()
        shown = page.locator(".totals")

        def add_lead(shown: Locator = shown) -> Callable[[], None]:
            leads.add_many(1)
            waiting = Lead.objects.count()
            return lambda: expect(shown).to_contain_text(f"Waiting{waiting}")

        link.focus()
        is_shown = add_lead()
        page.clock.run_for(6_000)
        is_shown()
        expect(link).to_be_focused()

        link.blur()
        page.locator("#outcomes").select_text()
        is_shown = add_lead()
        page.clock.run_for(6_000)
        assert page.evaluate("getSelection().toString()") == "Outcomes"
        page.evaluate("getSelection().removeAllRanges()")
        page.clock.run_for(6_000)
        is_shown()
        if button is None:
            continue
        button.focus()
        is_shown = add_lead()
        page.clock.run_for(6_000)
        expect(button).to_be_focused()
        button.blur()
        page.clock.run_for(6_000)
        is_shown()
