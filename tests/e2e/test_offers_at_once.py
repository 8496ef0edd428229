"""An emergency that rings on three phones at once, on the board in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dispatch.jobs.models import Offer
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, column, elsewhere, live, tell_people
from tests.harness.jobs import Floor
from tests.harness.several import call_at_once, emergency
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_board_shows_three_phones_that_ring_and_the_first_yes(floor: Floor, sign_in, width, scheme):
    crew = call_at_once(floor).crew("Ann Whitaker", "Bob Marsh", "Cid Delgado-Montgomery", "Dee")
    job = emergency(floor)
    calls = [floor.rings(one) for one in crew[:3]]
    floor.until(lambda: Offer.objects.filter(job=job, ringing_since=None).count() == 0)
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path="/board/", width=width, scheme=scheme))
    if width < 1000:
        page.locator('[data-tab="calling"]').click()
    card = column(page, "calling").locator(f'[data-job="{job.pk}"]')
    expect(card).to_contain_text("3 phones ringing")
    for one in crew[:3]:
        expect(card).to_contain_text(one.name)
    expect(card).to_contain_text("next: Dee")
    shot(page, f"three-ring-card-{width}-{scheme}")
    card.locator(f'[data-open="{job.pk}"]').click()
    notice = page.locator(".calling-now")
    for one in crew[:3]:
        expect(notice).to_contain_text(f"{one.name} ringing")
    accessible(page)
    shot(page, f"three-ring-{width}-{scheme}")

    def bob_accepts() -> None:
        calls[1].answer().hears("press 1").press("1").hears("the job is yours")

    elsewhere(bob_accepts)
    tell_people()
    expect(page.locator(".notice.good")).to_contain_text("Bob Marsh")
    expect(page.locator("#drawer-body")).to_contain_text(
        "withdrew the offer to Ann Whitaker: Bob Marsh accepted first"
    )
    shot(page, f"three-ring-accepted-{width}-{scheme}")
