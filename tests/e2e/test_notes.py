"""Notes with mentions in browsers: one dispatcher mentions another, who opens the job from the notification."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from accounts.models import User
from accounts.tenancy import actor_of
from dispatch.jobs.models import Job, JobNote
from dispatch.jobs.services import notes
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live, tell_people
from tests.harness.jobs import Floor
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser


def write_many(job: Job, author: User, count: int) -> None:
    """Write notes without events, whose updates would replace the list while a key is pressed."""
    JobNote.objects.bulk_create(
        JobNote(
            organization=job.organization, job=job, author=author, author_label=str(author),
            text=f"Note {number:03} about the gate",
        )
        for number in range(count)
    )  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_earlier_notes_appear_above_those_that_are_read(floor: Floor, sign_in, width, scheme):
    job = floor.started()
    dana = make.dispatcher(floor.organization, "Dana Reyes")
    write_many(job, dana, 230)
    page = live(sign_in(dana, path=f"/board/?job={job.pk}", width=width, scheme=scheme))
    written = page.locator("#notes-list")
    shown = written.locator("li:not(.more)")
    expect(shown).to_have_count(100)
    page.locator("#notes").scroll_into_view_if_needed()
    expect(shown.last).to_be_in_viewport()
    more = page.get_by_role("link", name="Show earlier notes")
    expect(more).to_contain_text("(130 more)")
    more.focus()
    shot(page, f"notes-earlier-{width}-{scheme}")
    more.press("Enter")
    expect(shown).to_have_count(200)
    expect(more).to_contain_text("(30 more)")
    expect(more).to_be_focused()
    more.press("Enter")
    expect(shown).to_have_count(230)
    expect(more).to_have_count(0)
    expect(written.locator("ol")).to_be_focused()
    accessible(page)
    written.locator("ol").evaluate("list => list.scrollTop = 0")
    expect(shown.first).to_be_in_viewport()
    notes.write_note(job.pk, "A colleague adds one", actor=actor_of(make.dispatcher(floor.organization, "Kim")))
    expect(shown).to_have_count(231)
    expect(shown.first).to_be_in_viewport()
    shot(page, f"notes-all-{width}-{scheme}")
    page.once("dialog", lambda dialog: dialog.accept())
    shown.first.get_by_role("button", name="Delete note").click()
    expect(shown).to_have_count(230)
    expect(shown.first).to_contain_text("Note 001")
    expect(shown.first).to_be_in_viewport()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_mention_brings_a_colleague_to_the_job(floor: Floor, sign_in, width, scheme):
    floor.technician("Ann Whitaker")
    job = floor.started()
    dana = make.dispatcher(floor.organization, "Dana Reyes")
    kim = make.dispatcher(floor.organization, "Kim Lee")
    for name in ("Kimberly Stone", "داليا حسن"):
        make.dispatcher(floor.organization, name)
    theirs = live(sign_in(kim, path="/board/", width=width, scheme=scheme))
    page = live(sign_in(dana, path=f"/board/?job={job.pk}", width=width, scheme=scheme))
    page.locator("#notes summary").click()
    text = page.get_by_label("New note")
    text.press_sequentially("Gate code 1234.\n@ki")
    options = page.get_by_role("listbox", name="Colleagues").get_by_role("option")
    expect(options).to_have_text(["Kim Lee", "Kimberly Stone"])
    accessible(page)
    shot(page, f"mention-list-{width}-{scheme}")
    text.press("Escape")
    expect(options).to_have_count(0)
    expect(page.locator("#drawer")).to_be_visible()
    text.press("Backspace")
    text.press("ArrowDown")
    text.press("ArrowUp")
    expect(page.get_by_role("option", name="Kim Lee", exact=True)).to_have_attribute("aria-selected", "true")
    text.press("Enter")
    expect(text).to_have_value("Gate code 1234.\n@Kim Lee ")
    text.press_sequentially("has the key. @دا")
    options.first.click()
    text.press("Control+Enter")
    text.press("Control+Enter")  # an impatient second press
    written = page.locator("#notes-list")
    expect(written.locator(".mention")).to_have_text(["@Kim Lee", "@داليا حسن"])
    expect(text).to_have_value("")
    expect(text).to_be_focused()
    expect(page.locator("#notes-count")).to_have_text("1")
    accessible(page)
    shot(page, f"note-written-{width}-{scheme}")
    assert JobNote.objects.count() == 1

    tell_people()
    expect(theirs.locator("#notices")).to_contain_text(f"Dana Reyes mentioned you in a note on job {job.pk}")
    shot(theirs, f"mention-notice-{width}-{scheme}")
    assert theirs.evaluate("window.neverReloaded")
    theirs.locator("#notices").get_by_role("link", name="Open job").click()
    expect(theirs.locator("#notes-list")).to_contain_text("Gate code 1234.")
    expect(theirs.get_by_role("button", name="Delete note")).to_have_count(0)
    live(theirs)
    shot(theirs, f"mention-opened-{width}-{scheme}")

    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete note").click()
    expect(written.locator("li")).to_have_count(0)
    expect(theirs.locator("#notes-list li")).to_have_count(0)

    theirs.keyboard.press("Escape")  # an open panel marks the mention as read, and the notice goes
    expect(theirs.locator("#drawer")).to_have_count(0)
    live(theirs)
    text.fill("@Kim Lee: cancel it")
    text.press("Control+Enter")
    expect(written.locator("li")).to_have_count(1)
    tell_people()
    expect(theirs.locator("#notices")).to_contain_text("mentioned you in a note")
    theirs.locator("#notices .toast").hover()  # it does not disappear by itself
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete note").click()
    expect(written.locator("li")).to_have_count(0)
    tell_people()
    expect(theirs.locator("#notices")).not_to_contain_text("mentioned you in a note")


def test_note_appears_although_the_answer_about_an_earlier_one_is_slow(floor: Floor, sign_in) -> None:
    job = floor.started()
    kim = actor_of(make.dispatcher(floor.organization, "Kim Lee"))
    page = live(sign_in(make.dispatcher(floor.organization, "Dana Reyes"), path=f"/board/?job={job.pk}"))
    held: list[Route] = []
    page.route("**/notes/?part=list*", lambda route: route.fallback() if held else held.append(route))
    with page.expect_response("**/?part=body"):
        notes.write_note(job.pk, "Gate code 1234", actor=kim)
    answer = wait_until(lambda: page.wait_for_timeout(50) or held)[0].fetch()
    with page.expect_response("**/?part=body"):
        notes.write_note(job.pk, "The dog bites", actor=kim)
    held[0].fulfill(response=answer)
    expect(page.locator("#notes-list li")).to_have_count(2)


@pytest.mark.parametrize(("slow", "other"), [("list", "earlier"), ("earlier", "list")])
def test_earlier_notes_and_a_new_one_appear_whichever_answer_is_slow(floor: Floor, sign_in, slow, other) -> None:
    job = floor.started()
    dana = make.dispatcher(floor.organization, "Dana Reyes")
    kim = actor_of(make.dispatcher(floor.organization, "Kim Lee"))
    write_many(job, dana, 110)
    page = live(sign_in(dana, path=f"/board/?job={job.pk}"))
    shown = page.locator("#notes-list li:not(.more)")
    expect(shown).to_have_count(100)
    steps = {
        "list": lambda: notes.write_note(job.pk, "The dog bites", actor=kim),
        "earlier": page.get_by_role("link", name="Show earlier notes").click,
    }
    held: list[Route] = []
    page.route(f"**/notes/?part={slow}*", lambda route: route.fallback() if held else held.append(route))
    steps[slow]()
    answer = wait_until(lambda: page.wait_for_timeout(50) or held)[0].fetch()
    with page.expect_event(
        "requestfinished", lambda request: f"part={other}" in request.url or "part=body" in request.url
    ):
        steps[other]()
    held[0].fulfill(response=answer)
    expect(shown).to_have_count(111)
    expect(shown.first).to_contain_text("Note 000")
    expect(shown.last).to_contain_text("The dog bites")
