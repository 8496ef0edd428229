"""A full day on the board, in real browsers: the shift begins, forty jobs, an outage, an emergency, the hand-over.

Screenshots of each part, at 1440 and at 390 pixels, are in test-results/day.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dispatch.core.models import Event
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from notifications.models import Notification
from tests.e2e.test_board import accessible, card, column, live, tell_people
from tests.harness.jobs import Floor
from tests.jobs.test_provider_outages import pass_time
from tests.phones import Phone, answer, ignore, manual, mix
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).parents[2] / "test-results" / "day"
JOBS, CREW = 40, 14


def shot(page: Page, name: str) -> None:
    """Save what the page shows, also as a phone would; nothing may be wider than the phone."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")
    wide = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    page.screenshot(path=SHOTS / f"{name}-390.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(wide)


def is_calm(floor: Floor) -> bool:
    """Whether no phone rings and nothing is in progress; moves on what waits."""
    floor.tick()
    return not Job.objects.filter(status="dispatching").exists()


def test_day_from_beginning_of_shift_to_hand_over(floor: Floor, sign_in):
    floor.set_policy(max_candidates=3, auto_pause_misses=0, line_wait_s=600)
    crew = [floor.technician(f"Unit {nth:02}", km=1 + nth / 4, max_open_jobs=20) for nth in range(CREW)]
    eager, silent = crew[:-2], crew[-2:]
    usually_accept = mix((9, answer(press="1")), (1, answer(press="2")))
    nearest = floor.phone(eager[0]).will(manual(), usually_accept)
    for technician in eager[1:]:
        floor.phone(technician).will(usually_accept)
    for technician in silent:
        floor.phone(technician).will(ignore())
    dana, kim = (make.dispatcher(floor.organization, name, on_duty=False) for name in ("Dana", "Kim"))
    board, other = (
        live(sign_in(who, path="/board/", scheme=scheme)) for who, scheme in ((dana, "light"), (kim, "dark"))
    )
    begin_shift(board)
    receive_forty_jobs(floor, board, nearest)
    expect(column(other, "assigned").locator("[data-count]")).to_have_text(str(JOBS))
    shot(other, "3-forty-jobs-seen-by-kim")
    outlast_an_outage(floor, board, eager)
    serve_an_emergency(floor, board)
    hand_over(floor, board, other, silent)
    check_the_day(floor)


def begin_shift(board: Page) -> None:
    expect(column(board, "attention").locator("[data-empty]")).to_be_visible()
    board.get_by_role("button", name="Go on duty").click()
    expect(board.get_by_role("button", name="On duty")).to_be_visible()
    shot(board, "1-shift-begins")


def receive_forty_jobs(floor: Floor, board: Page, nearest: Phone) -> None:
    """Forty forms come in a burst; the crew takes those that it does not decline.

    The nearest technician lets the phone ring until the board was seen.
    """
    for nth in range(JOBS):
        floor.submit(
            customer_name=f"Customer {nth:02}",
            customer_phone=make.phone(),
            address=f"{nth} N Central Ave, Phoenix, AZ 85004",
        )
    floor.work()
    expect(column(board, "calling").locator("[data-cards] > li").first).to_be_visible()
    shot(board, "2-forty-jobs-calling")
    call = nearest.rings().answer()
    floor.work()
    call.press("1").hears("the job is yours")
    floor.until(lambda: is_calm(floor), within=90)
    ends = Counter(Job.objects.values_list("status", flat=True))
    assert ends["assigned"] + ends["pending"] == JOBS
    assert ends["assigned"] >= JOBS * 3 // 4, floor.story()
    expect(column(board, "assigned").locator("[data-count]")).to_have_text(str(ends["assigned"]))
    tell_people()
    accessible(board)
    shot(board, "3-forty-jobs-assigned")
    for job in Job.objects.filter(status="pending"):  # each was declined thrice: a dispatcher decides
        choose(board, job, "Unit 00")
    expect(column(board, "attention").locator("[data-empty]")).to_be_visible()


def choose(board: Page, job: Job, name: str) -> None:
    """Assign the job to this technician on the board."""
    acknowledge_all(board)
    card(board, "attention", job).click()
    board.locator("#act-assign").click()
    board.locator("#who").press_sequentially(name)
    expect(board.locator("label.choice")).to_have_count(1)
    board.locator("label.choice", has_text=name).click()
    board.get_by_label("Assign anyway").check()
    board.locator("#ask button[data-do]").click()
    expect(board.locator("#drawer-body")).to_contain_text(f"assigned the job to {name}")
    board.keyboard.press("Escape")
    look_away(board)
    expect(card(board, "assigned", job)).to_be_visible()


def look_away(board: Page) -> None:
    """Leave the lists, which don't move under the pointer or the focus."""
    board.locator("#connection").hover()
    board.locator("#main").focus()


def acknowledge_all(board: Page) -> None:
    """Acknowledge each open alert by its key, oldest first, until none is open."""
    alerts = Notification.objects.filter(level="critical", acknowledged_at=None, settled_at=None)
    wait_until(lambda: not alerts.exists() or board.keyboard.press("x"), interval=0.2)
    expect(board.locator("#alert-bar [role=alert]")).to_have_count(0)


def outlast_an_outage(floor: Floor, board: Page, eager: list[Technician]) -> None:
    """The phone provider refuses the account: nobody is called or blamed, and the job goes on afterwards."""
    for technician in eager:
        floor.phone(technician).will(answer(press="1"))
    floor.sim.fault("refuse", code=20003, times=None, on="any")
    job = floor.started(customer_name="During the outage")
    tell_people()
    expect(board.locator("#alert-bar")).to_contain_text("No calls can be made")
    expect(board.locator("#health")).to_contain_text("Phone provider refuses the account")
    calls = Call.objects.filter(purpose="offer").count()
    pass_time(floor, 20)
    assert floor.status(job) == "dispatching"
    assert Call.objects.filter(purpose="offer").count() == calls, "nobody is called meanwhile"
    shot(board, "4-outage")
    floor.sim.heal()
    pass_time(floor, 10)
    floor.until(lambda: floor.status(job) == "assigned")
    tell_people()
    expect(card(board, "assigned", job)).to_be_visible()
    acknowledge_all(board)
    expect(column(board, "attention").locator("[data-empty]")).to_be_visible()
    expect(board.locator("#health")).not_to_contain_text("Phone provider")
    assert not Technician.objects.exclude(auto_paused_at=None).exists()
    shot(board, "5-outage-over")


def serve_an_emergency(floor: Floor, board: Page) -> None:
    """An emergency is marked and first on the board, and its technician answers by phone."""
    for one in Technician.objects.all():
        floor.phone(one).will(manual())
    emergency = floor.started(customer_phone=make.phone(), address="1 Oak St, Phoenix, AZ 85004", priority=1)
    technician = floor.live_offer(emergency).technician
    phone = str(technician.phone)  # which rang in vain before
    floor.until(lambda: "ringing" in floor.sim.calls_to(phone)[-1].statuses)
    call = floor.sim.calls_to(phone)[-1]
    expect(card(board, "calling", emergency)).to_be_visible()
    expect(column(board, "calling").locator("[data-cards] > li").first).to_contain_text("Emergency")
    shot(board, "6-emergency")
    call.answer()
    floor.work()
    call.press("1").hears("the job is yours")
    expect(card(board, "assigned", emergency)).to_be_visible()
    assert floor.job(emergency).technician == technician


def hand_over(floor: Floor, board: Page, other: Page, silent: list[Technician]) -> None:
    """Dana leaves a job that nobody accepted, and a note. Kim comes on duty, reads it, and assigns the job."""
    Technician.objects.exclude(pk__in=[one.pk for one in silent]).update(on_duty=False)
    for technician in silent:
        floor.phone(technician).will(ignore())
    job = floor.started(customer_phone=make.phone(), address="2 Oak St, Phoenix, AZ 85004", notes="Ring twice")
    floor.until(lambda: is_calm(floor))
    tell_people()
    acknowledge_all(board)
    row = column(board, "attention").locator(f'li[data-id="job-{job.pk}"]')
    row.get_by_role("button", name="Claim").click()
    expect(row).to_contain_text("Claimed by you")
    end_shift(board, f"#{job.pk} waits for {silent[0].name}.\nThe gas leak is done.")
    note = other.locator(".handover")
    expect(note).to_have_count(0)
    other.get_by_role("button", name="Go on duty").click()
    expect(other.get_by_role("button", name="On duty")).to_be_visible()
    expect(note).to_contain_text("The gas leak is done.")
    theirs = column(other, "attention").locator(f'li[data-id="job-{job.pk}"]')
    expect(theirs).to_contain_text("Claimed by Dana")
    accessible(other)
    shot(other, "8-hand-over")
    note.get_by_role("link", name=f"#{job.pk}").click()
    expect(other.locator("#drawer-body")).to_contain_text("Ring twice")
    note.get_by_role("button", name="Mark as read").click()
    expect(note).to_have_count(0)
    other.keyboard.press("Escape")
    theirs.get_by_role("button", name="Take over").click()
    expect(theirs).to_contain_text("Claimed by you")
    expect(row).to_contain_text("Claimed by Kim")
    choose(other, job, silent[0].name)
    expect(column(other, "attention").locator("[data-empty]")).to_be_visible()
    shot(other, "9-end-of-day")


def end_shift(board: Page, text: str) -> None:
    """Go off duty with a note for the next shift; think twice first."""
    board.get_by_role("button", name="On duty").click()
    expect(board.get_by_label("What should the next shift know?")).to_be_focused()
    accessible(board)
    shot(board, "7-end-of-shift")
    board.keyboard.press("Escape")
    expect(board.get_by_label("What should the next shift know?")).to_be_hidden()
    board.get_by_role("button", name="On duty").click()
    board.get_by_label("What should the next shift know?").fill(text)
    board.get_by_role("button", name="Go off duty").click()
    expect(board.get_by_role("button", name="Go on duty")).to_be_visible()
    expect(board.locator("#notices")).to_contain_text("Your note is on the board")


def check_the_day(floor: Floor) -> None:
    """Every form is one job with one technician, and every change has its event."""
    assert Job.objects.count() == JOBS + 3
    assert set(Job.objects.values_list("status", flat=True)) == {"assigned"}
    for job in Job.objects.all():
        assert job.offers.filter(status="accepted").count() <= 1
        assert Event.objects.filter(kind="job.assigned", subject_id=job.pk).count() == 1
    assert floor.sim.max_simultaneous(str(floor.number.phone)) <= floor.number.max_channels
