"""The thread of a job in a real browser: a technician's text arrives, and a dispatcher answers it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from dispatch.jobs import services
from dispatch.telephony.models import OptOut, Text
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, card, elsewhere, live, tell_people
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import reply, texting  # noqa: F401
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_technicians_text_is_read_and_answered_on_the_board(texting: Floor, sign_in, width, scheme):  # noqa: F811
    ann = texting.technician("Ann Whitaker")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    dana = make.dispatcher(texting.organization, "Dana")
    page = live(sign_in(dana, path=f"/board/?job={job.pk}", width=width, scheme=scheme))
    page.locator("#thread summary").click()
    expect(page.get_by_label("Text: Ann Whitaker")).to_be_visible()
    page.get_by_label("Text: Ann Whitaker").fill("On your way?")  # stays while the thread is refreshed

    elsewhere(lambda: reply(texting, ann, "My truck broke down on I-17. I can't make it before noon."))
    tell_people()
    thread = page.locator("#thread")
    expect(thread).to_contain_text("My truck broke down on I-17")
    expect(thread).to_contain_text("not answered yet")
    expect(page.locator("#notices")).not_to_contain_text("texted about job")  # the open thread shows it
    expect(page.get_by_label("Text: Ann Whitaker")).to_have_value("On your way?")
    shot(page, f"thread-received-{width}-{scheme}")
    if width > 1000:
        expect(card(page, "attention", job)).to_be_visible()
        expect(page.locator('[data-list="assigned"]')).to_contain_text("Text from Ann Whitaker")

    page.get_by_label("Text: Ann Whitaker").fill("Noon is fine. I'll call the customer.\nText me when you leave.")
    page.get_by_role("button", name="Send text").click()
    expect(thread).to_contain_text("Noon is fine")
    expect(thread).not_to_contain_text("not answered yet")
    expect(page.get_by_label("Text: Ann Whitaker")).to_have_value("")
    expect(page.locator('[data-list="attention"] [data-count]')).to_have_text("0")
    elsewhere(lambda: texting.until(lambda: _sent(texting)))
    expect(thread).to_contain_text("Delivered")
    accessible(page)
    shot(page, f"thread-answered-{width}-{scheme}")

    OptOut.objects.create(organization=texting.organization, phone=ann.phone)
    page.get_by_label("Text: Ann Whitaker").fill("One more thing")
    page.get_by_role("button", name="Send text").click()
    expect(thread.get_by_role("alert")).to_contain_text("Ann Whitaker has opted out of texts. Call (602)")
    shot(page, f"thread-refused-{width}-{scheme}")


def _sent(floor: Floor) -> bool:
    from dispatch.telephony import loops

    loops.send_due()
    return Text.objects.filter(purpose="thread", status="delivered").exists()


def test_a_technician_who_cancels_by_text_raises_an_alert(texting: Floor, sign_in):  # noqa: F811
    ann = texting.technician("Ann Whitaker")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(texting.organization, "Dana"), path="/board/"))
    elsewhere(lambda: reply(texting, ann, "Cancel"))
    tell_people()
    bar = page.locator("#alert-bar")
    expect(bar).to_contain_text("Ann Whitaker texted “Cancel”, opted out of texts, and may not come")
    expect(bar).to_contain_text(f"Job {job.pk}: Water heater repair")
    shot(page, "opted-out-1440")
    bar.get_by_role("link", name="Open").click()
    live(page)
    wait_until(lambda: "technician=" in page.url)
    expect(card(page, "assigned", job)).to_be_visible()


def test_a_technicians_text_about_a_closed_job_is_announced(texting: Floor, sign_in):  # noqa: F811
    ann = texting.technician("Ann Whitaker")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(texting.organization, "Dana"), path="/board/"))
    elsewhere(lambda: reply(texting, ann, "My truck broke down on I-17."))
    tell_people()
    expect(page.locator("#notices")).to_contain_text(f"Ann Whitaker texted about job {job.pk}")


def test_many_texts_are_one_toast_that_counts(texting: Floor, sign_in):  # noqa: F811
    ann = texting.technician("Ann Whitaker")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(texting.organization, "Dana"), path="/board/"))
    toasts = page.locator("#notices .toast")
    for n in range(1, 5):
        elsewhere(lambda n=n: reply(texting, ann, f"Where is it? {n}"))
        tell_people()
        title = f"{n} new texts from Ann Whitaker about job" if n > 1 else "Ann Whitaker texted about job"
        expect(toasts).to_have_count(1)
        expect(toasts).to_contain_text(f"{title} {job.pk}")
        expect(toasts).to_contain_text(f"Where is it? {n}")
    expect(page.locator("#unread")).to_have_text("1")
    page.evaluate("Dispatch.note('Something else')")
    toasts.first.get_by_role("button", name="Mark as read").click()
    expect(toasts).to_have_count(1)
    expect(page.locator("#unread")).to_be_hidden()


def test_dispatcher_records_by_key_that_the_technician_is_late(texting: Floor, sign_in):  # noqa: F811
    ann = texting.technician("Ann Whitaker")
    job = texting.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(texting.organization, "Dana"), path=f"/board/?job={job.pk}"))
    page.keyboard.press("l")
    page.get_by_label("Minutes late").fill("35")
    page.locator("#ask").get_by_role("button", name="Running late").click()
    expect(page.locator("#drawer-body")).to_contain_text("recorded that Ann Whitaker is running late 35 min")
    expect(page.locator('[data-list="assigned"]')).to_contain_text("Running late 35 min")
    shot(page, "running-late-1440")
