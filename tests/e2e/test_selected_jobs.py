"""A dispatcher repairs a burst by selecting jobs, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dispatch.jobs import services
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import BOB, accessible, elsewhere, live, tell_people
from tests.harness.jobs import Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_burst_is_repaired_with_a_few_presses(floor: Floor, sign_in, width, scheme):
    jobs = [
        floor.started(customer_phone=make.phone(), address=f"{n} N Central Ave, Phoenix, AZ 85004")
        for n in (1, 2, 3)
    ]
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/", width=width, scheme=scheme))
    tell_people()
    attention = page.locator("[data-list=attention]")
    expect(attention.locator(".pick").first).to_be_hidden()
    attention.get_by_role("button", name="Select", exact=True).click()
    expect(attention.get_by_role("button", name="Claim", exact=True).first).to_be_disabled()
    first, second = jobs[0].pk, jobs[1].pk
    attention.get_by_label(f"Select job {first}", exact=True).press("Space")
    attention.get_by_label(f"Select job {second}", exact=True).press("Space")
    expect(attention.get_by_text("2 selected")).to_be_visible()
    accessible(page)
    shot(page, f"selected-{width}-{scheme}")
    attention.get_by_role("button", name="Cancel…").click()
    expect(page.locator("#drawer-title")).to_have_text("Cancel jobs (2)")
    page.get_by_label("Reason").fill("Same customer called twice")
    accessible(page)
    shot(page, f"selected-ask-{width}-{scheme}")
    page.locator("#ask [data-do]").click()
    expect(page.locator("#notices")).to_contain_text("Canceled 2 jobs.")
    expect(page.locator("#drawer")).to_have_count(0)
    expect(attention.get_by_role("button", name="Select", exact=True)).to_be_visible()
    assert [floor.status(job) for job in jobs] == ["cancelled", "cancelled", "pending"]


def test_only_the_refused_jobs_stay_selected(floor: Floor, sign_in):
    jobs = [
        floor.started(customer_phone=make.phone(), address=f"{n} N Central Ave, Phoenix, AZ 85004")
        for n in (1, 2, 3)
    ]
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    attention = page.locator("[data-list=attention]")
    attention.get_by_role("button", name="Select", exact=True).click()
    attention.get_by_role("button", name="Select all shown").click()
    expect(attention.get_by_text("3 selected")).to_be_visible()
    attention.get_by_role("button", name="Call again…").click()
    expect(page.locator("#drawer-title")).to_have_text("Call technicians again (3)")
    elsewhere(lambda: services.correct(jobs[0].pk, correction=services.Correction(), priority=1, actor=BOB))
    page.locator("#ask [data-do]").click()
    expect(page.locator("#refused")).to_contain_text("Not changed: 1 job")
    elsewhere(floor.work)
    assert [floor.status(job) for job in jobs] == ["pending"] * 3, "nobody is nearby, so all need attention again"
    expect(attention.get_by_text("1 selected")).to_be_visible()
    expect(attention.get_by_label(f"Select job {jobs[0].pk}", exact=True)).to_be_checked()
    for job in jobs[1:]:
        expect(attention.get_by_label(f"Select job {job.pk}", exact=True)).not_to_be_checked()
    expect(page.locator("#refused")).to_be_visible()
