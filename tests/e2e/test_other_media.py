"""Forced colors, paper, the narrowest screens and open dialogs: nothing that is said elsewhere is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from accounts.models import User
from dispatch.core import clock
from dispatch.jobs.models import Job
from dispatch.technicians.models import Shift, Technician
from tests.e2e.test_board import live, make_pending, tell_people
from tests.harness.jobs import Floor
from tests.support import factories as make
from tests.support.tenants import tenant

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

# How an element looks when the colors of its state are gone.
LOOK = """element => { const style = getComputedStyle(element);
    return [style.outlineStyle, style.backgroundColor, style.color, style.borderTopWidth].join(); }"""
# WCAG 1.4.12.
SPACING = "* { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }"


def look(part: Locator) -> str:
    return str(part.first.evaluate(LOOK))


def test_forced_colors_show_what_is_chosen_and_focused(app_url: str, sign_in: Callable[..., Page]) -> None:
    ours = tenant("Alphaville")
    now = clock.now()
    job = ours.row(Job)
    page = sign_in(ours.admin, path="/reports/?days=7")
    page.emulate_media(forced_colors="active")
    assert look(page.locator(".period a[aria-current]")) != look(page.locator(".period a:not([aria-current])"))
    page.goto(f"{app_url}/board/?job={job.pk}")
    card = page.locator("li.is-open > article")
    expect(card).to_be_visible()
    assert look(card).startswith("solid")
    card.locator("a.open").focus()
    age = card.locator("time")
    shown = age.evaluate("time => getComputedStyle(time, '::after').content")
    assert shown == f'"{age.get_attribute("title")}"', "the exact time of the focused row"
    page.goto(f"{app_url}/leads/")
    meter = page.locator(".meter > span")
    assert look(meter) != look(page.locator("main"))
    technician = ours.row(Technician)
    Technician.objects.filter(pk=technician.pk).update(open_jobs=1, on_duty=True)
    Shift.objects.filter(technician=technician).delete()
    Job.objects.filter(pk=job.pk).update(
        status="assigned", pending_reason="", waiting_for="", technician=technician, assigned_at=now,
        on_the_way_at=now, eta_at=now + timedelta(minutes=20),
    )  # fmt: skip
    page.goto(f"{app_url}/board/timeline/")
    assert look(page.locator(".technician .shift, .technician.anytime .track")).startswith("solid")
    bar = page.locator(".bar-job").first
    bar.focus()
    assert look(bar).startswith("solid")


def test_paper_has_no_controls(app_url: str, sign_in: Callable[..., Page]) -> None:
    ours = tenant("Alphaville")
    page = sign_in(ours.admin, path="/reports/?days=7")
    page.emulate_media(media="print")
    expect(page.get_by_role("heading", name="Reports")).to_be_visible()
    expect(page.locator("table:visible").first).to_be_visible()
    for part in (".top", "#alert-bar", "nav", ".button", "form.period", ".subscribe form"):
        expect(page.locator(part).filter(visible=True), part).to_have_count(0)


@pytest.mark.parametrize(("language", "width"), [("en", 320), ("es", 390)])
def test_board_with_unread_alerts_fits(
    app_url: str, sign_in: Callable[..., Page], language: str, width: int
) -> None:
    ours = tenant("Alphaville")
    ours.row(Job)
    User.objects.filter(pk=ours.admin.pk).update(language=language)
    page = sign_in(ours.admin, path="/board/", width=width)
    page.evaluate(
        """words => {
        document.getElementById("unread-words").textContent = words;
        document.getElementById("pick").hidden = false;
    }""",
        {"en": "24 unread", "es": "24 sin leer"}[language],
    )
    badge = page.locator(".item .badge > span").first
    badge.evaluate(
        "badge => { badge.textContent = 'No qualified technician nearby: possible duplicate of #1201'; }"
    )
    for style in ("main {}", SPACING):
        page.add_style_tag(content=style)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert badge.evaluate("badge => badge.scrollWidth <= badge.clientWidth"), "the state is not cut"


def test_alert_is_announced_in_an_open_dialog(floor: Floor, sign_in: Callable[..., Page]) -> None:
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    page.keyboard.press("?")
    said = page.get_by_role("dialog").get_by_role("status")
    expect(said).to_be_attached()
    job = make_pending(floor)
    tell_people()
    expect(said).to_contain_text(f"Job {job.pk} needs a dispatcher")


def test_skip_link_of_the_admin_leads_to_its_content(app_url: str, sign_in: Callable[..., Page]) -> None:
    ours = tenant("Alphaville")
    page = sign_in(ours.admin, path="/admin/jobs/job/")
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to content")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    link.press("Enter")
    main = page.get_by_role("main")
    expect(main).to_be_focused()
    expect(main.locator("#result_list")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[role=main]') !== null")
    expect(page.locator("#said")).to_be_attached()
