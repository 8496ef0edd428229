"""Quiet hours in a real browser: an admin sets them, the board says why a job waits, a dispatcher calls now."""

from __future__ import annotations

from datetime import time, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from dispatch.core import clock
from dispatch.jobs.models import DispatchPolicy
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import card, column, live
from tests.harness.jobs import Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_job_waits_on_the_board_and_a_dispatcher_calls_now(floor: Floor, sign_in, width, scheme):
    ann = floor.technician("Ann")
    now = clock.now().astimezone(ZoneInfo(floor.organization.time_zone))
    end = (now + timedelta(hours=2)).time().replace(second=0, microsecond=0)
    began = (now - timedelta(hours=2)).time().replace(second=0, microsecond=0)
    floor.set_policy(quiet_for="normal", quiet_from=began, quiet_until=end)
    job = floor.started()
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/?job={job.pk}", width=width, scheme=scheme))
    words = f"Waiting until {end.hour}:{end.minute:02d} (quiet hours)"
    expect(page.locator("#drawer-body")).to_contain_text(words)
    if width > 1000:
        expect(column(page, "new")).to_contain_text(words)
    shot(page, f"quiet-{width}-{scheme}")
    page.locator("#act-call-next").click()
    expect(page.locator("#ask")).to_contain_text("Starts calling technicians now, during quiet hours.")
    shot(page, f"quiet-ask-{width}-{scheme}")
    page.locator("#ask [data-do]").click()
    floor.rings(ann)
    expect(page.locator("#drawer")).to_contain_text("Ann ringing")
    if width > 1000:
        expect(card(page, "calling", job)).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_an_admin_sets_quiet_hours(floor: Floor, sign_in, width, scheme):
    path = f"/admin/jobs/dispatchpolicy/{floor.policy.pk}/change/"
    page = sign_in(make.admin(floor.organization), path=path, width=width, scheme=scheme)
    page.get_by_label("Quiet hours").select_option(label="Urgent and normal jobs wait")
    page.locator("#id_quiet_from").fill("21:30")
    page.locator("#id_quiet_until").fill("06:45")
    page.locator("#id_quiet_until").scroll_into_view_if_needed()
    shot(page, f"quiet-admin-{width}-{scheme}")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator("#id_quiet_from")).to_have_value("21:30")
    policy = DispatchPolicy.objects.get()
    assert (policy.quiet_for, policy.quiet_from, policy.quiet_until) == ("urgent", time(21, 30), time(6, 45))
