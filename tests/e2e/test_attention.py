"""Many jobs that need attention and a burst of alerts: oldest first, all reachable, none covered."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.console.templatetags.console import exact
from dispatch.core import clock
from dispatch.jobs.models import Job, Submission
from notifications.models import Notification
from tests.e2e.screens import SCREENS
from tests.e2e.test_board import box, elsewhere, live, make_pending, tell_people
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

MANY = 48
# Elements that notices must not cover, if they are on the screen.
PARTS = [".brand", ".menu", ".top .end", "#health", ".bar", "#crew-slot", "#text", "[data-list] > header", ".tabs"]
SHOTS = os.environ.get("BOARD_SHOTS", "")


@pytest.fixture
def burst(floor) -> list[Job]:
    """Jobs without anybody near, received one minute after the other; the last one is urgent."""
    forms = [
        floor.submit(customer_name=f"Customer {number}", address=f"{number} N Central Ave, Phoenix, AZ 85004")
        for number in range(MANY)
    ]
    floor.work()
    made = [floor.job(submission) for submission in forms]
    now = clock.now()
    for number, job in enumerate(made):
        asked = now - timedelta(minutes=MANY - number)
        Submission.objects.filter(pk=job.submission_id).update(created_at=asked)
        Job.objects.filter(pk=job.pk).update(created_at=asked, waiting_since=now)
    Job.objects.filter(pk=made[-1].pk).update(priority=1)
    assert set(Job.objects.values_list("status", flat=True)) == {"pending"}
    return made


def numbers(page: Page) -> list[int]:
    rows = page.locator('[data-list="attention"] [data-cards] > li')
    return [int(one.removeprefix("job-")) for one in rows.evaluate_all("all => all.map(one => one.dataset.id)")]


def boxes(page: Page, selectors: list[str]) -> list[list[dict[str, float]]]:
    """Return the visible rectangles of each selector's elements at one moment.

    They are clipped to their scroll containers and the window.
    """
    return page.evaluate(
        """selectors => selectors.map(selector => [...document.querySelectorAll(selector)].map(one => {
          let {left, top, right, bottom} = one.getBoundingClientRect();
          for (let up = one.parentElement; up; up = up.parentElement) {
            const style = getComputedStyle(up);
            if (/auto|scroll|hidden/.test(style.overflowX + style.overflowY) && up !== document.body) {
              const cut = up.getBoundingClientRect();
              left = Math.max(left, cut.left); right = Math.min(right, cut.right);
              top = Math.max(top, cut.top); bottom = Math.min(bottom, cut.bottom);
            }
          }
          return {left, top, right, bottom: Math.min(bottom, innerHeight), of: one.className || one.id};
        }).filter(one => one.right - one.left > 1 && one.bottom - one.top > 1))""",
        selectors,
    )


def nothing_is_covered(page: Page) -> None:
    selectors = ["#alert-bar, #notices > *", *PARTS, "[data-list] [data-cards] > li"]
    notices, *others = boxes(page, selectors)
    assert notices
    for selector, parts in zip(selectors[1:], others, strict=True):
        for part in parts:
            for notice in notices:
                apart = (
                    part["right"] <= notice["left"] + 1
                    or notice["right"] <= part["left"] + 1
                    or part["bottom"] <= notice["top"] + 1
                    or notice["bottom"] <= part["top"] + 1
                )
                assert apart, (selector, part, notice)


def shot(page: Page, name: str) -> None:
    """Save a screenshot if requested."""
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{SHOTS}/{name}.png")


def toasts(page: Page, count: int) -> None:
    page.evaluate(
        "n => { for (let i = 1; i <= n; i++) Dispatch.note(`Unit ${i} missed 3 calls and is paused`, 'late') }",
        count,
    )


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_burst_covers_nothing_and_the_oldest_are_first(floor, sign_in, burst, width, scheme):
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path="/board/", width=width, scheme=scheme))
    tell_people()
    bar = page.locator("#alert-bar")
    expect(bar).to_contain_text(f"{MANY} jobs need a dispatcher")
    expect(bar.get_by_role("alert")).to_have_count(1)
    expect(bar).to_contain_text(re.compile(r"oldest\s*4[89] min"))
    toasts(page, 7)
    expect(page.locator("#notices .toast")).to_have_count(3)
    expect(page.locator("#notices .toast").last).to_be_in_viewport()
    nothing_is_covered(page)
    shot(page, f"burst-{width}-{scheme}")

    urgent, *others = [job.pk for job in [burst[-1], *burst[:-1]]]
    assert numbers(page) == [urgent, *others[:39]]
    attention = page.locator('[data-list="attention"]')
    expect(attention.locator("[data-count]")).to_have_text(str(MANY))
    expect(attention.locator("[data-cards] > li").nth(1)).to_contain_text(re.compile(r"4[89] min"))
    expect(attention.locator("[data-more]")).to_contain_text("8 more")

    page.keyboard.press("g")
    page.keyboard.press("m")
    expect(page).to_have_url(re.compile("map=1"))
    attention.get_by_role("link", name="Show all").click()
    expect(page).to_have_url(re.compile("map=1&show=all"))
    live(page)
    assert numbers(page) == [urgent, *others]
    expect(attention.locator("[data-more]")).to_be_hidden()
    elsewhere(lambda: floor.submit(customer_name="One more") and floor.work())
    expect(attention.locator("[data-count]")).to_have_text(str(MANY + 1))
    wait_until(lambda: len(numbers(page)) == MANY + 1)
    page.reload()
    live(page)
    assert len(numbers(page)) == MANY + 1


def test_alert_is_shown_although_the_browser_does_not_know_the_time_zone(floor, sign_in):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/reports/"))
    page.evaluate("document.getElementById('notices').dataset.zone = 'America/Newer_Than_The_Browser'")
    job = make_pending(floor)
    tell_people()
    bar = page.locator("#alert-bar")
    expect(bar).to_contain_text(f"Job {job.pk} needs a dispatcher")
    bar.get_by_role("button", name="Acknowledge").click()
    expect(bar).to_be_hidden()


def test_the_list_of_alerts_opens_in_the_flow_of_the_page(floor, sign_in, burst):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    tell_people()
    bar = page.locator("#alert-bar")
    expect(bar).to_contain_text(f"{MANY} jobs need a dispatcher")
    bar.get_by_role("button", name=f"Show all {MANY}").click()
    expect(bar.get_by_role("listitem")).to_have_count(MANY + 1)
    nothing_is_covered(page)
    shot(page, "alerts-listed-1440")
    bar.get_by_role("button", name="Acknowledge all").click()
    expect(bar).to_contain_text(f"Press again to acknowledge {MANY} alerts")
    assert not Notification.objects.filter(acknowledged_at__isnull=False).exists()
    begun = bar.locator("time").first
    moment = datetime.fromisoformat(begun.get_attribute("datetime") or "")
    expect(begun).to_have_attribute("title", exact(moment, floor.organization.time_zone))
    bar.get_by_role("button", name="Acknowledge oldest").click()
    expect(bar).to_contain_text(f"{MANY - 1} jobs need a dispatcher")
    oldest = Notification.objects.filter(level="critical").order_by("pk").first()
    assert oldest is not None
    assert oldest.acknowledged_at


@pytest.mark.parametrize("width", [1440, 390])
def test_outage_is_shown_above_older_alerts_until_it_ends(floor, sign_in, burst, width):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/", width=width))
    tell_people()
    bar = page.locator("#alert-bar")
    expect(bar.get_by_role("alert")).to_have_text(re.compile(f"{MANY} jobs need a dispatcher"))
    account = ProviderAccount.objects.of(floor.organization).get()
    elsewhere(lambda: account_outages.record_failure(account.pk, "refused", "Authenticate", is_certain=True))
    tell_people()
    expect(bar.get_by_role("alert").first).to_contain_text("No calls can be made: The phone provider refused")
    expect(bar.get_by_role("alert").last).to_contain_text(f"{MANY} jobs need a dispatcher")
    nothing_is_covered(page)
    shot(page, f"outage-{width}")
    elsewhere(lambda: account_outages.record_success(account.pk))
    tell_people()
    expect(bar).not_to_contain_text("No calls can be made")
    expect(bar).to_contain_text(f"{MANY} jobs need a dispatcher")


@pytest.mark.parametrize("width", [1440, 1200])
def test_cards_are_complete_beside_an_open_job(floor, sign_in, burst, width):
    path = f"/board/?job={burst[0].pk}"
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=path, width=width))
    tell_people()
    expect(page.locator("#alert-bar")).to_contain_text("jobs need a dispatcher")
    cut = page.locator("[data-cards]").evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth)")
    assert cut == []
    nothing_is_covered(page)
    shot(page, f"drawer-{width}")


def test_toast_under_the_pointer_disappears_when_it_leaves(floor, sign_in):
    page = sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/")
    page.clock.install()
    page.reload()
    live(page)
    toasts(page, 1)
    note = page.locator("#notices .toast")
    note.hover()
    page.clock.run_for(11_000)
    expect(note).to_have_count(1)
    page.locator("#text").hover()
    page.clock.run_for(11_000)
    expect(note).to_have_count(0)
    assert box(page.locator("#text"))


def test_alert_that_could_not_be_acknowledged_says_why(floor, sign_in):
    make_pending(floor)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    tell_people()
    acknowledge = page.locator("#alert-bar").get_by_role("button")
    expect(acknowledge).to_have_text("Acknowledge")
    page.route("**/acknowledge/", lambda route: route.abort())
    page.keyboard.press("x")
    why = "Not saved: the server could not be reached. Try again"
    expect(acknowledge).to_have_text(why)
    expect(page.locator("#said")).to_have_text(why)
    page.unroute("**/acknowledge/")
    page.route("**/acknowledge/", lambda route: route.fulfill(status=503))
    acknowledge.click()
    expect(acknowledge).to_have_text("Not saved (HTTP 503). Try again")
    expect(page.locator("#said")).to_have_text("Not saved (HTTP 503). Try again")
    page.unroute("**/acknowledge/")
    page.keyboard.press("x")
    expect(page.locator("#alert-bar")).to_be_hidden()


SPOKEN = """
() => {
  window.spoken = [];
  const isAlert = node => node?.closest?.("[role=alert]") || node?.querySelector?.("[role=alert]");
  new MutationObserver(records => {
    const alerts = new Set(records.flatMap(({target, addedNodes}) => [target.parentElement, target, ...addedNodes])
      .map(isAlert).filter(one => one?.isConnected && one.ariaLive !== "off"));
    for (const one of alerts) window.spoken.push(one.textContent);
  }).observe(document.getElementById("alert-bar"), { childList: true, subtree: true, characterData: true });
}
"""


def test_a_burst_is_announced_once_and_settling_it_by_keyboard_keeps_the_focus(floor, sign_in):
    page = sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/")
    page.clock.install()
    page.reload()
    live(page).evaluate(SPOKEN)
    jobs = [make_pending(floor) for _ in range(3)]  # of one customer: two may be duplicates
    tell_people()
    bar, toast, said = page.locator("#alert-bar"), page.locator("#notices .toast"), page.locator("#said")
    expect(bar).to_contain_text("3 jobs need a dispatcher")
    expect(toast).to_contain_text("A job may be a duplicate: 2 times")
    expect(said).to_have_text("A job may be a duplicate: 2 times")
    page.clock.fast_forward("02:00")
    expect(bar).to_contain_text(re.compile(r"oldest\s*[2-9] min"))
    assert page.evaluate("spoken") == ["3 jobs need a dispatcher"]

    oldest = bar.get_by_role("button", name="Acknowledge oldest")
    oldest.focus()
    page.keyboard.press("Enter")
    expect(bar).to_contain_text("2 jobs need a dispatcher")
    expect(oldest).to_be_focused()
    expect(said).to_contain_text(f"Dana acknowledged: Job {jobs[0].pk} needs a dispatcher")
    assert page.evaluate("spoken") == ["3 jobs need a dispatcher"]
    make_pending(floor)
    tell_people()
    expect(bar).to_contain_text("3 jobs need a dispatcher")
    toast.get_by_role("button", name=re.compile(r"^Mark as read: Job \d+ may be a duplicate")).focus()
    page.keyboard.press("Enter")
    expect(toast).to_have_count(0)
    expect(oldest).to_be_focused()
    assert page.evaluate("spoken") == ["3 jobs need a dispatcher"] * 2
