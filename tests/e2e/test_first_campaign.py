"""A newcomer creates a campaign, hears it, goes live with 20 leads and reads the outcome, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from accounts.models import User
from dispatch.core.events import SYSTEM
from dispatch.leads import progress
from dispatch.leads.models import Campaign
from dispatch.leads.services import switches
from tests.e2e.test_attention import shot
from tests.harness.leads import Floor
from tests.phones import Simulator, answer, manual
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
MINE = "+16025550199"


@pytest.fixture
def leads(sim: Simulator, app_url: str, settings: Any) -> Iterator[Floor]:
    settings.SIMULATOR_URL = sim.base_url
    floor = Floor("twilio", lines=20, account_sid=sim.account_sid, auth_token=sim.auth_token)
    floor.campaign.delete()
    switches.set_dispatch(floor.organization.pk, mode="off", actor=SYSTEM)
    yield floor
    floor.stop()
    wait_until(lambda: not sim.open_calls(), message="calls never end")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), pytest.param(390, "dark", marks=pytest.mark.soak)])
def test_a_newcomer_calls_twenty_leads(
    leads: Floor, sim: Simulator, sign_in: Callable[..., Page], width: int, scheme: str
) -> None:
    boss = make.admin(leads.organization, "Adam")
    User.objects.filter(pk=boss.pk).update(phone=MINE)
    page = sign_in(boss, width=width, scheme=scheme, path="/leads/")
    page.get_by_role("link", name="New campaign").click()
    page.locator("#id_name").fill("Fall tune-up")
    page.locator("#id_pool").select_option(str(leads.pool.pk))
    page.locator("#id_window_from").fill("00:00")
    page.locator("#id_window_until").fill("00:00")
    page.locator("#id_script").fill("Hello {nmae}.\nPress 1 for a visit.")
    page.locator("#branches-group a.add-row").click()
    page.locator("#id_branches-0-key").fill("1")
    page.locator("#id_branches-0-say").fill("Thank you, {name}. We will come.")
    page.locator("#id_branches-0-disposition").fill("wants_visit")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("body")).to_contain_text("Unknown variable {nmae}")
    page.locator("#id_script").fill("Hello {name}.\nPress 1 for a visit.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fall tune-up")

    sim.phone(MINE).will(manual())
    page.get_by_role("button", name="Call me first").click()
    expect(page.get_by_text("You'll hear the script")).to_be_visible()

    def is_placed() -> bool:
        leads.step("placer")  # a pass may skip a call that another session has locked
        return bool(sim.calls_to(MINE))

    wait_until(is_placed, interval=0.2)
    mine = sim.phone(MINE).rings().answer().hears("Press 1 for a visit.").press("1")
    mine.hears("We will come.").ended()

    page.get_by_role("link", name="Upload a file").first.click()
    sim.others_will(answer(0.5, "1"))
    rows = "".join(f"+160255501{number:02},Ann {number}\n" for number in range(20))
    content = f"phone,name\n{rows}".encode()
    page.locator("#file").set_input_files({"name": "f.csv", "mimeType": "text/csv", "buffer": content})
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("status").filter(has_text="added")).to_contain_text("20 added to Fall tune-up")

    page.get_by_role("link", name="Open Fall tune-up").click()
    page.get_by_role("link", name="Go live").click()
    page.get_by_role("button", name="Go live and call 20 people").click()
    leads.step(switches.LIFTED)
    leads.start()
    leads.all_end()
    progress.reset()
    page.get_by_role("link", name="Fall tune-up").click()
    expect(page.locator("#campaign")).to_contain_text("1: wants_visit")
    outcomes = page.get_by_role("region", name="Outcomes")
    expect(outcomes).to_contain_text("Answered")
    expect(outcomes).to_contain_text("20")
    expect(page.locator("#campaign")).to_contain_text("All leads are finished.")
    expect(page.get_by_role("row", name="(602) 555-0107")).to_contain_text("Ann 7")
    shot(page, f"campaign-{width}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_label("Show", exact=True).select_option("no_answer")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("main")).to_contain_text("No results match your filters")
    assert Campaign.objects.get().branches.count() == 1
