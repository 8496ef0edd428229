"""The board in a real browser: changes appear without a reload, and nothing uncertain is executed."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from dispatch.core.events import Actor
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from notifications import loops as notifier
from notifications.services import ownership
from tests.core.horizon import all_readable
from tests.core.threads import Elsewhere
from tests.phones import answer, ignore
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
BOB = Actor("user", 99, "Bob Marsh")


@pytest.fixture
def pending(floor):
    """Two technicians who never answer, and a job that is pending for it."""
    for technician in floor.crew("Ann", "Bo"):
        floor.phone(technician).will(ignore())
    floor.set_policy(max_candidates=1)
    return make_pending(floor)


def make_pending(floor) -> Job:
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    return floor.job(job)


def tell_people() -> None:
    """Run the notifier until it has read everything."""

    def read_all() -> None:
        all_readable()
        while notifier.step() == 0:
            pass

    Elsewhere(read_all).finish()


def elsewhere(action) -> None:
    """Run something as another process would."""
    Elsewhere(action).finish()


def live(page: Page) -> Page:
    expect(page.locator("html")).to_have_attribute("data-live", "live")
    page.evaluate("window.neverReloaded = true")
    return page


def column(page: Page, name: str):
    return page.locator(f'[data-list="{name}"]')


def card(page: Page, name: str, job: Job):
    return column(page, name).locator(f'a[data-open="{job.pk}"]')


def box(locator) -> dict[str, float]:
    """Return an element's rectangle; retry if the board has just redrawn it."""
    return wait_until(locator.bounding_box)


def accessible(page: Page) -> None:
    page.wait_for_timeout(0)
    found = Axe().run(page, options=WCAG)
    assert found.violations_count == 0, found.generate_report()


def test_a_job_goes_from_submission_to_accepted_on_the_board_without_reload(floor, sign_in):
    ann = floor.technician("Ann")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    expect(column(page, "calling").locator("[data-empty]")).to_be_visible()
    job = floor.started()
    call = floor.rings(ann)
    expect(card(page, "calling", job)).to_be_visible()
    expect(column(page, "calling")).to_contain_text("Ringing")
    expect(column(page, "calling")).to_contain_text(re.compile(r"Ann \d:\d\d left"))
    card(page, "calling", job).click()
    expect(page.locator("#drawer")).to_contain_text("Ann ringing")
    call.answer()
    floor.work()
    expect(page.locator("#drawer")).to_contain_text("Ann answered")
    call.press("1").hears("the job is yours")
    expect(card(page, "assigned", job)).to_be_visible()
    expect(page.locator("#drawer")).to_contain_text("pressed 1 to accept")
    expect(column(page, "assigned").locator("[data-count]")).to_have_text("1")
    assert page.evaluate("window.neverReloaded")
    assert f"job={job.pk}" in page.url


def test_exhaustion_alerts_two_dispatchers_and_one_acknowledges_for_both(floor, sign_in):
    floor.phone(floor.technician("Ann")).will(answer(press="2"))
    people = [make.dispatcher(floor.organization, name, on_duty=False) for name in ("Dana", "Kim")]
    pages = [live(sign_in(people[0], path="/board/")), live(sign_in(people[1], path="/board/", scheme="dark"))]
    pages[0].get_by_role("button", name="Go on duty").click()
    expect(pages[0].get_by_role("button", name="On duty")).to_be_visible()
    expect(pages[0].locator("html")).to_have_attribute("data-sound", "here")
    job = make_pending(floor)
    tell_people()
    for page in pages:
        expect(page.get_by_role("alert")).to_contain_text("Nobody accepted")
        expect(page).to_have_title(re.compile(r"^\(1\) Board"))
        expect(card(page, "attention", job)).to_be_visible()
    expect(pages[0].locator("html")).to_have_attribute("data-sounded", "1")
    assert pages[1].locator("html").get_attribute("data-sounded") is None  # nobody unlocked the sound there
    pages[0].get_by_role("button", name="Acknowledge").click()
    for page in pages:
        expect(page.get_by_role("alert")).to_have_count(0)
    expect(card(pages[1], "attention", job)).to_be_visible()  # the job still waits
    column(pages[0], "attention").get_by_role("button", name="Claim").click()
    expect(column(pages[0], "attention")).to_contain_text("Claimed by you")
    expect(column(pages[1], "attention")).to_contain_text("Claimed by Dana")


def test_only_one_of_two_tabs_plays_a_sound(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    second = page.context.new_page()
    second.goto(page.url)
    live(second)
    for tab, where in ((page, "here"), (second, "elsewhere")):
        tab.locator("#alert-box summary").click()
        tab.get_by_role("button", name="Test sound").click()
        expect(tab.locator("html")).to_have_attribute("data-sound", where)
    tell_people()
    for tab in (page, second):
        expect(tab.get_by_role("alert")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("data-sounded", "1")
    assert second.locator("html").get_attribute("data-sounded") is None
    page.close()
    expect(second.locator("html")).to_have_attribute("data-sound", "here")


def test_conflict_names_the_change_and_keeps_the_input(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={pending.pk}"))
    page.locator("#act-assign").click()
    page.locator("label.choice", has_text="Bo").click()
    page.get_by_label("Note", exact=True).fill("He lives around the corner")
    ann = Technician.objects.get(name="Ann")
    elsewhere(lambda: services.assign(pending.pk, ann.pk, actor=BOB))
    expect(page.locator("#drawer-body")).to_contain_text("Bob Marsh assigned the job to Ann")
    page.locator("#ask button[data-do]").click()
    expect(page.get_by_role("alert")).to_contain_text(", Bob Marsh assigned the job to Ann.")
    expect(page.get_by_label("Note", exact=True)).to_have_value("He lives around the corner")
    assert floor.job(pending).technician == ann
    page.locator("#ask button[data-do]").click()
    expect(page.locator("#drawer-body")).to_contain_text("Dana assigned the job to Bo")
    assert floor.job(pending).technician.name == "Bo"


def test_a_list_does_not_move_under_the_focus(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    card(page, "attention", pending).focus()
    newer = make_pending(floor)
    news = column(page, "attention").get_by_role("button", name="1 new")
    expect(news).to_be_visible()
    expect(card(page, "attention", newer)).to_have_count(0)
    expect(card(page, "attention", pending)).to_be_focused()
    news.click()
    expect(card(page, "attention", newer)).to_be_visible()
    expect(news).to_be_hidden()
    page.locator("#text").hover()
    page.locator("#text").focus()
    elsewhere(lambda: services.cancel(newer.pk, "Called off", actor=BOB))
    expect(card(page, "attention", newer)).to_have_count(0)
    expect(card(page, "done", newer)).to_be_visible()


def test_unchanged_parts_are_not_redrawn(floor, sign_in, pending):
    """Not even by a page's first update: a user who is about to press a button presses the one they saw."""
    dana = make.dispatcher(floor.organization, "Dana")
    mine, theirs, other = (make_pending(floor) for _ in range(3))
    ownership.claim(floor.organization, ownership.JOB, mine.pk, user=dana, actor=BOB)
    kim = make.dispatcher(floor.organization, "Kim")
    ownership.claim(floor.organization, ownership.JOB, theirs.pk, user=kim, actor=BOB)
    tell_people()
    page = live(sign_in(dana, path=f"/board/?job={pending.pk}"))
    page.evaluate("for (const one of document.querySelectorAll('#lists article')) one.was = true")
    elsewhere(lambda: services.cancel(other.pk, "Called off", actor=BOB))
    expect(card(page, "attention", other)).to_have_count(0)
    same = "article => article.was === true"
    for job in (pending, mine, theirs):
        assert card(page, "attention", job).locator("xpath=ancestor::article").evaluate(same), job
    elsewhere(lambda: ownership.claim(floor.organization, ownership.JOB, pending.pk, user=kim, actor=BOB))
    expect(column(page, "attention").locator(f"li[data-id='job-{pending.pk}']")).to_contain_text("Claimed by Kim")


def test_everything_works_from_the_keyboard(floor, sign_in, pending):
    second = make_pending(floor)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    tell_people()
    expect(page.locator("#alert-bar")).to_contain_text("2 jobs need a dispatcher")
    page.keyboard.press("x")
    page.keyboard.press("x")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.keyboard.press("j")
    expect(card(page, "attention", pending)).to_be_focused()
    page.keyboard.press("j")
    expect(card(page, "attention", second)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-title")).to_be_focused()
    page.keyboard.press("a")
    expect(page.locator("#who")).to_be_focused()
    page.keyboard.insert_text("Bo")  # at once, so that the list is fetched once
    expect(page.locator("label.choice")).to_have_count(1)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("label.choice input")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-body")).to_contain_text("Dana assigned the job to Bo")
    expect(page.locator("#ask")).to_have_count(0)
    assert floor.job(second).technician.name == "Bo"
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("m")
    expect(page.locator("#map svg")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.type("jkax?")  # text, not commands
    expect(page.locator("#text")).to_have_value("jkax?")
    expect(page.locator('[data-list="attention"] [data-hidden]')).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#text")).not_to_be_focused()
    expect(page.locator("#text")).to_have_value("jkax?")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Acknowledge the oldest alert")
    page.keyboard.press("Escape")
    page.evaluate("localStorage.setItem('dispatch.shortcuts', '0')")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_calling_the_next_and_pausing_from_the_keyboard(floor, sign_in):
    ann, bo = floor.crew("Ann", "Bo")
    job = floor.started()
    floor.rings(ann)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=f"/board/?job={job.pk}"))
    page.keyboard.press("c")
    expect(page.locator("#ask")).to_contain_text("hangs up on Ann")
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-body")).to_contain_text("Dana called the next technician now")
    floor.rings(bo)
    expect(page.locator("#drawer-body")).to_contain_text("Bo ringing")
    page.keyboard.press("p")
    expect(page.locator("#ask")).to_contain_text("Pause this job")
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-body .badge").first).to_contain_text("Paused")
    assert floor.job(job).paused_at is not None


def test_on_a_phone_attention_comes_first_and_the_drawer_is_a_sheet(floor, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), width=390, path="/board/"))
    first = card(page, "attention", pending)
    assert box(first)["y"] < box(page.locator("#filters"))["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert box(column(page, "attention").get_by_role("button", name="Claim"))["height"] >= 44
    first.click()
    sheet = page.locator("#drawer")
    expect(sheet).to_be_visible()
    place = box(sheet)
    assert (place["x"], place["width"]) == (0, 390)
    assert place["y"] + place["height"] == pytest.approx(900, abs=1)
    for button in page.locator(".acts .button").all():
        assert box(button)["height"] >= 44
    accessible(page)
    page.locator("#drawer-close").click()
    expect(first).to_be_focused()
    page.get_by_role("button", name=re.compile("^Assigned")).click()
    expect(column(page, "assigned")).to_be_visible()
    expect(column(page, "calling")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_accessible(floor, app_url, sign_in, pending, scheme):
    floor.phone(floor.technician("Cy", km=5)).will(answer(press="1"))
    floor.set_policy(max_candidates=5)
    taken = floor.started()
    floor.until(lambda: floor.status(taken) == "assigned")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), scheme=scheme, path="/board/?map=1"))
    tell_people()
    expect(page.get_by_role("alert")).to_be_visible()
    accessible(page)
    page.locator("#alert-box summary").click()
    accessible(page)
    card(page, "attention", pending).click()
    expect(page.locator("#drawer")).to_be_visible()
    accessible(page)
    page.locator("#act-assign").click()
    expect(page.locator("#ask")).to_be_visible()
    accessible(page)
    page.goto(f"{app_url}/reports/")
    expect(page.get_by_role("heading", name="Reports")).to_be_visible()
    accessible(page)


def test_an_outsiders_socket_is_refused_and_a_lost_role_closes_it(floor, sign_in, pending):
    from accounts import services as accounts
    from dispatch.core.events import SYSTEM

    elsewhere_org = make.organization("Elsewhere")
    outsider = sign_in(make.dispatcher(elsewhere_org), path="/board/")
    told = outsider.evaluate(
        """slug => new Promise((done) => {
            const socket = new WebSocket(location.origin.replace("http", "ws") + "/ws/?organization=" + slug);
            socket.onmessage = () => done("heard"); socket.onclose = (event) => done(event.code);
        })""",
        floor.organization.slug,
    )
    assert told == 1006  # refused before it was open
    answer = outsider.request.get(f"{outsider.url.split('/board')[0]}/board/jobs/{pending.pk}/act/assign/")
    assert answer.status == 404
    dana = make.dispatcher(floor.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/?job={pending.pk}"))
    elsewhere(lambda: accounts.change_member(dana.memberships.get().pk, actor=SYSTEM, is_active=False))
    tell_people()
    expect(page.locator("#connection")).to_contain_text("no longer a member")
    expect(page.locator("#act-assign")).to_have_attribute("aria-disabled", "true")


def test_back_shows_the_filters_the_job_and_the_map_of_the_address(floor, app_url, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    card(page, "attention", pending).click()
    expect(page).to_have_url(f"{app_url}/board/?job={pending.pk}")
    page.locator("#map-button").click()
    expect(page.locator("#map svg").first).to_be_visible()
    page.go_back()
    expect(page.locator("#drawer")).to_have_count(0)
    expect(page.locator("#map")).to_be_hidden()
    page.go_forward()
    expect(page.locator("#drawer")).to_contain_text(f"#{pending.pk}")
    expect(page.locator("#map svg").first).to_be_visible()
    page.locator("#area").fill("Nowhere")
    expect(card(page, "attention", pending)).to_have_count(0)
    page.evaluate("history.go(-2)")
    expect(page.locator("#area")).to_have_value("")
    expect(card(page, "attention", pending)).to_be_visible()
    expect(page.locator("#drawer")).to_have_count(0)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_step_back_gives_up_the_job_of_the_step_before(floor, app_url, sign_in, pending, is_open):
    other = make_pending(floor)
    address = f"{app_url}/board/?job={other.pk}" if is_open else f"{app_url}/board/"
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=address.removeprefix(app_url)))
    card(page, "attention", pending).click()
    expect(page).to_have_url(f"{app_url}/board/?job={pending.pk}")
    page.evaluate("history.back()")
    expect(page).to_have_url(address)
    expect(page.locator(f"#drawer[data-job='{pending.pk}']")).to_have_count(0)
    page.route(f"**/board/jobs/{pending.pk}/", lambda route: None)
    with page.expect_request(f"**/board/jobs/{pending.pk}/"):
        page.evaluate("history.forward()")
    with page.expect_event("requestfailed", lambda request: request.url.endswith(f"/{pending.pk}/")):
        page.evaluate("history.back()")
    expect(page).to_have_url(address)
    expect(page.locator("#drawer")).to_have_count(int(is_open))


def test_a_step_back_before_the_page_has_loaded_is_followed(floor, app_url, sign_in, pending):
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    card(page, "attention", pending).click()
    expect(page).to_have_url(f"{app_url}/board/?job={pending.pk}")
    held = []
    page.route("**/dispatch/board*.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    expect(page.locator("#drawer")).to_contain_text(f"#{pending.pk}")
    page.evaluate("history.back()")
    expect(page).to_have_url(f"{app_url}/board/")
    for route in held:
        route.continue_()
    expect(page.locator("#drawer")).to_have_count(0)


def test_filters_the_open_job_and_back_are_in_the_address(floor, app_url, sign_in, pending):
    other = make_pending(floor)
    elsewhere(lambda: Job.objects.filter(pk=other.pk).update(address="1 Main St, Tucson, AZ 85701"))
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    page.locator("#area").fill("Tucson")
    expect(page).to_have_url(re.compile("area=Tucson"))
    expect(card(page, "attention", pending)).to_have_count(0)
    card(page, "attention", other).click()
    expect(page).to_have_url(re.compile(f"area=Tucson&job={other.pk}"))
    page.go_back()
    expect(page.locator("#drawer")).to_have_count(0)
    page.go_forward()
    expect(page.locator("#drawer")).to_be_visible()
    page.reload()
    expect(page.locator("#drawer")).to_contain_text(f"#{other.pk}")
    expect(page.locator("#area")).to_have_value("Tucson")
