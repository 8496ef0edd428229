"""A dispatcher plans the day on the timeline in a real browser."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import Job
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live
from tests.harness.jobs import MARIA, Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


def grab(page, part) -> tuple[float, float]:
    """Press the mouse on the part and begin to drag it; return where."""
    part.hover(position={"x": 12, "y": 12})  # repeated by the browser's driver while the chart is replaced
    page.mouse.down()
    box = part.bounding_box()  # nothing is replaced while the mouse is pressed
    x, y = box["x"] + 12, box["y"] + 12
    page.mouse.move(x + 10, y + 4, steps=3)
    return x, y


def test_a_job_is_dragged_onto_a_technician_and_then_moved(floor: Floor, sign_in):
    _, bob = floor.crew("Ann", "Bob")
    job = floor.started(
        window_start=clock.now() + timedelta(days=2), window_end=clock.now() + timedelta(days=2, hours=2)
    )
    services.pause(job.pk, actor=MARIA)
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/timeline/?day={_local(floor, job.window_start, '%Y-%m-%d')}"))
    tray = page.locator(f'.tray [data-drag="{job.pk}"]')
    row = page.locator(f'.technician[data-technician="{bob.pk}"] .track')
    grab(page, tray)
    box = row.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + box["height"] / 2, steps=5)
    expect(page.locator(".dragged")).to_contain_text("Bob")
    expect(page.locator(".dragged .fine, .dragged .bad")).not_to_have_text("Checking…")
    page.mouse.up()
    ask = page.locator("#ask")
    expect(ask.get_by_label("Bob")).to_be_checked()
    dropped_at = ask.locator("#id_window_from").input_value()
    ask.get_by_role("button", name="Assign").click()
    bar = page.locator(f'.technician[data-technician="{bob.pk}"] .bar-job')
    expect(bar).to_have_count(1)
    assert floor.job(job).technician == bob
    assert _local(floor, floor.job(job).window_start, "%H:%M") == dropped_at
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_have_count(0)
    before = floor.job(job).window_start
    x, y = grab(page, bar)
    page.mouse.move(x - 100, y, steps=5)
    page.mouse.up()
    expect(page.locator("#id_window_from")).not_to_have_value(_local(floor, before, "%H:%M"))
    page.get_by_role("button", name="Correct").click()
    expect(page.locator("#ask")).to_have_count(0)
    expect(page.locator("#drawer-body")).to_contain_text("corrected the arrival window")
    assert floor.job(job).window_start < before


def _local(floor: Floor, moment: datetime, shape: str) -> str:
    return moment.astimezone(ZoneInfo(floor.organization.time_zone)).strftime(shape)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_timeline_is_legible_and_accessible(floor: Floor, sign_in, width, scheme):
    (ann,) = floor.crew("Ann")
    zone = ZoneInfo(floor.organization.time_zone)
    noon = clock.now().astimezone(zone).replace(hour=12, minute=0) + timedelta(days=1)  # far from both midnights
    job = floor.started(window_start=noon, window_end=noon + timedelta(hours=2))
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    floor.started()
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/timeline/?day={noon:%Y-%m-%d}", width=width, scheme=scheme))
    expect(page.locator(".bar-job")).to_have_count(1)
    accessible(page)
    arrows = [page.get_by_role("link", name=name).bounding_box() for name in ("Previous day", "Next day")]
    assert arrows[0]["y"] == arrows[1]["y"], "on one line with the day, also on a phone"
    shot(page, f"timeline-{width}-{scheme}")
    page.get_by_role("link", name="Week").click()
    expect(page.locator(".chip")).to_have_count(1)
    accessible(page)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_name_of_a_job_that_began_left_of_what_is_shown_stays_legible(floor: Floor, sign_in, width, scheme):
    (ann,) = floor.crew("Ann")
    zone = ZoneInfo(floor.organization.time_zone)
    afternoon = clock.now().astimezone(zone).replace(hour=15, minute=0) + timedelta(days=1)
    clock.travel((afternoon - clock.now()).total_seconds())
    job = floor.started()
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    Job.objects.filter(pk=job.pk).update(started_at=clock.now() - timedelta(hours=14))
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path="/board/timeline/", width=width, scheme=scheme))
    page.locator(".rows").evaluate(
        """rows => {
            const [name, bar] = [".technician .name", ".bar-job"].map(
                (part) => rows.querySelector(part).getBoundingClientRect());
            rows.scrollLeft += bar.left + bar.width / 3 - name.right;
        }"""
    )
    name = page.locator(".technician .name").bounding_box()
    bar, label = page.locator(".bar-job").bounding_box(), page.locator(".bar-job b").bounding_box()
    assert bar["x"] < name["x"] + name["width"], "the bar begins behind the column of names"
    assert name["x"] + name["width"] <= label["x"]
    assert label["x"] + label["width"] <= bar["x"] + bar["width"]
    shot(page, f"timeline-scrolled-{width}-{scheme}")


def test_state_of_an_unassigned_job_stays_in_its_card_on_a_phone(floor: Floor, sign_in):
    jobs = [floor.started(), floor.started()]  # a single card would be as wide as the screen
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(status="pending", pending_reason="nobody_near")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/timeline/", width=390))
    card = page.locator(".tray-job").first
    badge = card.locator(".badge")
    expect(badge).to_have_text("No qualified technician nearby")
    inner, outer = badge.bounding_box(), card.bounding_box()
    assert inner["x"] + inner["width"] <= outer["x"] + outer["width"]
