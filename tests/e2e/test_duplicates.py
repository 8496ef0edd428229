"""A probable duplicate in a real browser: flagged on card and panel, merged or dismissed."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, column, live, tell_people
from tests.harness.jobs import Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_dispatcher_merges_or_dismisses_a_duplicate(floor: Floor, sign_in, width, scheme):
    floor.crew("Ann", "Bob", "Cid")
    first = floor.started()
    second, third = floor.started(), floor.started(customer_phone="+16025550177")
    assert second.duplicate_of == first
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/?job={second.pk}", width=width, scheme=scheme))
    tell_people()
    notice = page.locator(".duplicate")
    expect(notice).to_contain_text(f"Possible duplicate of job {first.pk}: same phone number, same address.")
    if width > 1000:
        expect(column(page, "calling")).to_contain_text(f"Possible duplicate of #{first.pk}")
    expect(page.locator("#notices")).to_contain_text(f"Job {third.pk} may be a duplicate of job {first.pk}")
    accessible(page)
    shot(page, f"duplicate-{width}-{scheme}")
    notice.get_by_role("link", name=f"Merge into #{first.pk}").click()
    expect(page.locator("#ask")).to_contain_text(f"Cancels this job as a duplicate of job {first.pk}")
    shot(page, f"duplicate-ask-{width}-{scheme}")
    page.locator("#ask [data-do]").click()
    expect(page.locator("#drawer-body")).to_contain_text(f"Duplicate of job {first.pk}.")
    assert floor.job(second).status == "cancelled"

    page.goto(page.url.partition("?")[0] + f"?job={third.pk}")
    live(page)
    page.locator(".duplicate").get_by_role("link", name="Not a duplicate").click()
    page.locator("#ask [data-do]").click()
    expect(page.locator("#drawer-body")).to_be_visible()
    expect(page.locator(".duplicate")).to_have_count(0)
    assert floor.job(third).duplicate_state == "dismissed"
    page.goto(page.url.partition("?")[0] + f"?job={first.pk}")
    expect(page.locator("#drawer-body")).not_to_contain_text("may be a duplicate")


def test_a_burst_of_like_notifications_is_one_toast_with_a_count(floor: Floor, sign_in):
    floor.crew("Ann", "Bob", "Cid", "Dee")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    jobs = [floor.started() for _ in range(4)]  # of one customer
    tell_people()
    toast = page.locator("#notices .toast")
    expect(toast).to_have_count(1)
    expect(toast).to_contain_text("A job may be a duplicate: 3 times")
    expect(toast).to_contain_text(f"Latest: Job {jobs[-1].pk} may be a duplicate of job")
    expect(toast.get_by_role("link", name="Show all")).to_have_attribute("href", "/notifications/")
    expect(page.locator("#unread")).to_have_text("3")
    toast.get_by_role("button", name="Mark 3 as read").click()
    expect(toast).to_have_count(0)
    expect(page.locator("#unread")).to_be_hidden()
