"""An acknowledged alert that nothing follows returns to the board, live."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dispatch.core import clock
from notifications.services import escalation
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, elsewhere, live, make_pending, tell_people
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_an_acknowledged_alert_returns_to_the_board(floor, sign_in, width, scheme):
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path="/board/", width=width, scheme=scheme))
    job = make_pending(floor)
    tell_people()
    bar = page.locator("#alert-bar")
    for _ in range(2):
        bar.get_by_role("button", name="Acknowledge").click()
        expect(bar).to_be_hidden()
        clock.travel(15 * 60 + 5)
        elsewhere(escalation.return_due)
        expect(bar.get_by_role("alert")).to_contain_text(f"Job {job.pk} needs a dispatcher")
        expect(bar).to_contain_text("Dana acknowledged this 15 min ago, but nothing has happened since")
    accessible(page)
    shot(page, f"returned-{width}-{scheme}")
