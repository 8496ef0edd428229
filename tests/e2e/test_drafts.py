"""What a dispatcher writes on a job stays until it is sent, whatever else they open, also on a bad connection."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from dispatch.jobs import services
from dispatch.jobs.models import Job, JobNote
from dispatch.telephony.models import OptOut, Text
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import texting  # noqa: F401
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

ADDRESS = "/board/?job={}"


def note_of(page: Page):
    if page.locator("#notes details:not([open])").count():
        page.locator("#notes summary").click()
    return page.get_by_label("New note")


def open_job(page: Page, job: Job) -> None:
    page.evaluate("id => window.Dispatch.board.open(id)", str(job.pk))
    expect(page.locator("#drawer")).to_have_attribute("data-job", str(job.pk))


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_an_unsent_note_stays_whatever_else_is_opened(floor: Floor, sign_in, width, scheme):
    job, other = floor.started(), floor.started()
    page = live(
        sign_in(
            make.dispatcher(floor.organization, "Dana"), path=ADDRESS.format(job.pk), width=width, scheme=scheme
        )
    )
    note_of(page).fill("Gate code 1234, the dog is friendly")
    page.locator("#act-cancel").click()
    expect(page.locator("#ask")).to_be_visible()
    page.get_by_role("link", name="Go back").click()
    expect(page.locator("#ask")).to_have_count(0)
    expect(page.get_by_label("New note")).to_be_visible()
    expect(page.get_by_label("New note")).to_have_value("Gate code 1234, the dog is friendly")
    shot(page, f"note-draft-{width}-{scheme}")
    accessible(page)
    open_job(page, other)
    expect(note_of(page)).to_have_value("")
    note_of(page).fill("Call the landlord")
    page.locator("#drawer-close").click()
    open_job(page, job)
    expect(note_of(page)).to_have_value("Gate code 1234, the dog is friendly")
    page.goto(page.url.replace(page.url[page.url.index("/board/") :], "/leads/"))
    page.go_back()
    live(page)
    expect(note_of(page)).to_have_value("Gate code 1234, the dog is friendly")
    page.get_by_role("button", name="Add note").click()
    expect(page.locator("#notes-list li")).to_have_count(1)
    expect(note_of(page)).to_have_value("")
    page.reload()
    expect(page.locator("#notes-list li")).to_have_count(1)
    expect(note_of(page)).to_have_value("")
    page.goto(page.url.replace(f"job={job.pk}", f"job={other.pk}"))
    expect(note_of(page)).to_have_value("Call the landlord")


def test_a_note_whose_reply_is_lost_is_kept_and_written_once(floor: Floor, sign_in):
    job = floor.started()
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=ADDRESS.format(job.pk)))
    note_of(page).fill("The customer left the key at the desk")
    page.context.set_offline(True)
    note_of(page).press("Control+Enter")
    expect(page.locator("#notices")).to_contain_text(re.compile("could not be reached|You're offline"))
    expect(note_of(page)).to_have_value("The customer left the key at the desk")
    page.context.set_offline(False)
    live(page)

    def lose_reply(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/notes/", lose_reply)
    with page.expect_event("requestfailed"):
        note_of(page).press("Control+Enter")
    expect(page.locator("#notices")).to_contain_text("could not be reached")
    expect(note_of(page)).to_have_value("The customer left the key at the desk")
    page.unroute("**/notes/")
    page.reload()
    expect(page.locator("#notes-list li")).to_have_count(1)
    expect(note_of(page)).to_have_value("The customer left the key at the desk")
    note_of(page).press("Control+Enter")
    expect(note_of(page)).to_have_value("")
    expect(page.locator("#notes-list li")).to_have_count(1)
    assert JobNote.objects.count() == 1


def test_what_is_written_while_a_note_is_being_sent_stays(floor: Floor, sign_in):
    job = floor.started()
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=ADDRESS.format(job.pk)))
    held: list[Route] = []
    page.route(
        "**/notes/", lambda route: held.append(route) if route.request.method == "POST" else route.continue_()
    )
    note_of(page).fill("First")
    note_of(page).press("Control+Enter")
    expect(page.get_by_role("button", name="Add note")).to_be_disabled()
    note_of(page).press_sequentially(" Second")
    held[0].continue_()
    expect(page.locator("#notes-list li")).to_contain_text(["First"])
    expect(note_of(page)).to_have_value("Second")
    assert JobNote.objects.get().text == "First"


def test_a_text_whose_reply_is_lost_or_late_is_sent_once(texting: Floor, sign_in):  # noqa: F811
    ann = texting.technician("Ann", max_open_jobs=5)
    job, other = texting.started(), texting.started()
    for one in (job, other):
        services.assign(one.pk, ann.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(texting.organization, "Dana"), path=ADDRESS.format(job.pk)))
    page.locator("#thread summary").click()
    text, send = page.get_by_label("Text: Ann"), page.get_by_role("button", name="Send text")
    sent = page.locator("#thread-list li.ours")

    def lose_reply(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/texts/", lose_reply)
    text.fill("Bring the long ladder")
    with page.expect_event("requestfailed"):
        send.click()
    expect(page.locator("#notices")).to_contain_text("could not be reached")
    expect(text).to_have_value("Bring the long ladder")
    page.unroute("**/texts/")
    send.click()
    expect(text).to_have_value("")
    expect(sent).to_have_count(1)
    text.fill("Bring the long ladder")
    send.click()
    expect(sent).to_have_count(2)

    held: list[Route] = []
    page.route(
        "**/texts/", lambda route: held.append(route) if route.request.method == "POST" else route.continue_()
    )
    text.fill("Ring twice")
    send.click()
    wait_until(lambda: page.wait_for_timeout(20) or held)
    open_job(page, other)
    expect(text).to_have_value("")
    open_job(page, job)
    expect(text).to_have_value("Ring twice")
    with page.expect_response("**/texts/"):
        held[0].continue_()
    expect(text).to_have_value("")
    open_job(page, other)
    open_job(page, job)
    expect(text).to_have_value("")
    text.fill("One more thing")
    send.click()
    wait_until(lambda: page.wait_for_timeout(20) or held[1:])
    open_job(page, other)
    OptOut.objects.create(organization=texting.organization, phone=ann.phone)
    held[1].continue_()
    expect(page.locator("#notices")).to_contain_text("Ann has opted out of texts.")
    bodies = Text.objects.filter(purpose="thread").order_by("pk").values_list("body", flat=True)
    assert list(bodies) == ["Bring the long ladder"] * 2 + ["Ring twice"]


def test_an_unsent_text_to_a_technician_stays_and_is_gone_after_signing_out(texting: Floor, sign_in):  # noqa: F811
    ann = texting.technician("Ann")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(texting.organization, "Dana"), path=ADDRESS.format(job.pk)))
    page.locator("#thread summary").click()
    page.get_by_label("Text: Ann").fill("Bring the long ladder")
    page.locator("#act-complete").click()
    page.locator("#ask-back").click()
    expect(page.locator("#ask")).to_have_count(0)
    expect(page.get_by_label("Text: Ann")).to_have_value("Bring the long ladder")
    assert not Text.objects.filter(purpose="thread").exists()
    page.locator("form[data-sign-out]").evaluate("form => form.requestSubmit()")
    page.wait_for_url(re.compile("logout"))
    assert "dispatch.draft" not in page.evaluate("JSON.stringify(sessionStorage)")


def test_shift_tab_leaves_the_note_and_names_nobody(floor: Floor, sign_in):
    job = floor.started()
    make.dispatcher(floor.organization, "Kim Lee")
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path=ADDRESS.format(job.pk)))
    note_of(page).press_sequentially("Ask @ki")
    expect(page.get_by_role("option", name="Kim Lee")).to_be_visible()
    note_of(page).press("Shift+Tab")
    expect(note_of(page)).not_to_be_focused()
    expect(note_of(page)).to_have_value("Ask @ki")
    expect(page.get_by_role("option", name="Kim Lee")).to_have_count(0)
