"""Test the simulated phones, the link in a text and the customer's form in a browser.

At the width of a phone, and without JavaScript where a page must work without it.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.jobs.models import PublicForm, Submission
from dispatch.telephony import loops, webhook_urls
from dispatch.telephony.models import Text
from tests.core.threads import Elsewhere
from tests.harness.jobs import Floor
from tests.phones import answer

pytestmark = pytest.mark.browser


@pytest.fixture
def visit(chromium: Browser, app_url: str) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page without sign-in.

    `visit(path, width=390, scripts=True)`. A JavaScript error on a page fails the test.
    """
    contexts, errors = [], []

    def open_page(path: str, *, width: int = 1440, scripts: bool = True, **options: Any) -> Page:
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, java_script_enabled=scripts, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path if path.startswith("http") else f"{app_url}{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def texting(floor: Floor) -> Floor:
    """The floor with slow deadlines, whose number may text and be called."""
    OutboundNumber.objects.filter(pk=floor.number.pk).update(sends_texts=True, texts_per_second=1000)
    floor.number.refresh_from_db()
    floor.sim.add_number(
        str(floor.number.phone),
        sms_url=webhook_urls.number_webhook(floor.number, "sms"),
        voice_url=webhook_urls.number_webhook(floor.number, "voice"),
        status_callback=webhook_urls.number_webhook(floor.number, "status"),
    )
    floor.set_policy(
        offer_by_text=True, missed_call_grace_s=600, ring_timeout_s=600, answer_timeout_s=1800,
        answered_extension_s=600,
    )  # fmt: skip
    return floor


def send_texts() -> None:
    Elsewhere(loops.send_due).finish()


def card_of(page: Page, name: str) -> Any:
    return page.locator(".phone-card", has=page.get_by_role("heading", name=name, exact=True))


def test_visitor_takes_an_automatic_phone_and_accepts_the_job(texting, visit):
    ann = texting.technician("Ann")
    texting.phone(ann).will(answer(after=2000, press="2"))  # what it would do by itself
    page = visit("/phones/")
    page.evaluate("window.neverReloaded = true")
    card = card_of(page, "Ann")
    expect(card).to_have_attribute("data-state", "idle")
    job = texting.started()
    expect(card).to_have_attribute("data-state", "ringing")
    expect(page.get_by_role("status").filter(has_text="Ann is ringing")).to_be_visible()
    expect(page).to_have_title(re.compile(r"^\(1\) "))
    card.get_by_role("button", name="Answer").click()
    expect(card.get_by_role("button", name="You have this phone")).to_be_visible()
    expect(card.get_by_text("We have a job for you")).to_be_visible()
    card.get_by_role("button", name="1", exact=True).click()
    expect(card).to_have_attribute("data-state", "idle")
    expect(card.get_by_text("The job is yours")).to_be_visible()  # also when it was said and over between two news
    assert texting.job(job).technician == ann
    assert page.evaluate("window.neverReloaded")
    card.get_by_role("button", name="You have this phone").click()
    expect(card.get_by_role("button", name="Take this phone")).to_be_visible()


def test_a_visitor_answers_by_text_and_calls_back(texting, visit):
    ann, bob = texting.crew("Ann", "Bob")
    page = visit("/phones/", width=390, color_scheme="dark")
    job = texting.started()
    texting.rings(ann)
    send_texts()
    card = card_of(page, "Ann")
    expect(card.get_by_text("Reply 1 to accept")).to_be_visible()
    card.get_by_text("Text or call").click()
    card.get_by_label("Text from Ann").fill("2")
    card.get_by_role("button", name="Send").click()
    texting.until(lambda: texting.offers(job)[0] == ("Ann", "declined"))

    texting.rings(bob)
    card = card_of(page, "Bob")
    card.get_by_role("button", name="Decline").click()
    expect(card).to_have_attribute("data-state", "idle")
    card.get_by_role("button", name="Call back").click()
    expect(card.get_by_text("We have a job for you")).to_be_visible()
    card.get_by_role("button", name="1", exact=True).click()
    texting.until(lambda: texting.status(job) == "assigned")
    assert texting.job(job).technician == bob


def test_page_works_without_scripts_and_only_in_development(texting, visit, settings):
    ann = texting.technician("Ann")
    texting.started()
    texting.rings(ann)
    page = visit("/phones/", scripts=False)
    card_of(page, "Ann").get_by_role("button", name="Answer").click()
    expect(card_of(page, "Ann").get_by_text("On a call")).to_be_visible()
    settings.DEVELOPMENT = False
    for path in ("/phones/", "/phones/news/"):
        assert page.goto(f"{settings.PUBLIC_BASE_URL}{path}").status == 404


@pytest.mark.parametrize("scripts", [True, False])
def test_an_offer_is_accepted_by_its_link_on_a_phone(texting, visit, scripts):
    ann = texting.technician("Ann")
    job = texting.started()
    texting.rings(ann)
    send_texts()
    body = Text.objects.get(purpose="offer").body
    page = visit(re.search(r"https?://\S+", body)[0], width=390, scripts=scripts)
    expect(page.get_by_role("heading", name="Water heater repair")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Sketch"))).to_be_visible()
    if scripts:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Accept job").click()
    expect(page.get_by_role("heading", name="The job is yours")).to_be_visible()
    assert texting.job(job).technician == ann

    page.get_by_role("link", name="Your jobs").click()
    expect(page.get_by_text("Dana Whitfield")).to_be_visible()
    page.get_by_text("I can't make it").click()
    page.get_by_label("Reason").fill("Flat tyre")
    page.get_by_role("button", name="Give job back").click()
    expect(page.get_by_text("We'll find another technician for the job")).to_be_visible()
    expect(page.get_by_text("No jobs today")).to_be_visible()


def test_technician_sets_the_position(texting, visit):
    from dispatch.jobs import signed_links

    ann = texting.technician("Ann")
    here = {"latitude": 33.51, "longitude": -112.02}
    page = visit(signed_links.technician_url(ann), width=390, geolocation=here, permissions=["geolocation"])
    page.get_by_role("button", name="Use my location").click()
    expect(page.get_by_text("Your position has been updated")).to_be_visible()
    ann.refresh_from_db()
    assert (ann.lat, ann.lng) == (33.51, -112.02)


def fill_in(page: Any) -> None:
    page.get_by_label("What do you need help with?").select_option("water-heater")
    page.get_by_label("Your name").fill("Dana Whitfield")
    page.get_by_label("Phone").fill("602-555-0177")
    page.get_by_label("Street address").fill("200 W Washington St")
    page.get_by_label("City").fill("Phoenix")
    page.get_by_label("ZIP code").fill("85003")


def test_customer_sends_the_form_and_follows_the_status(texting, visit):
    PublicForm.objects.create(organization=texting.organization)
    ann = texting.technician("Ann")
    texting.phone(ann).will(answer(press="1"))
    page = visit(f"/f/{texting.organization.slug}/", width=390, scripts=False)
    fill_in(page)
    clock.travel(10)
    page.get_by_role("button", name="Request service").click()
    page.get_by_role("link", name="Track your request").click()
    expect(page.get_by_role("heading", name="We received your request")).to_be_visible()
    texting.until(lambda: texting.status(Submission.objects.get()) == "assigned")
    page.reload()
    expect(page.get_by_role("heading", name="Ann is coming")).to_be_visible()


@pytest.fixture
def shop() -> Iterator[str]:
    """Another site, on another port and host name, that shows whatever is put into `page`."""

    class Shop(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Shop</title><h1>Our shop</h1>")

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_form_works_in_a_frame_on_an_allowed_site(texting, app_url, visit, shop):
    form = PublicForm.objects.create(organization=texting.organization, embed_origins=shop)
    page = visit(f"{shop}/")

    def embed() -> Any:
        page.goto(f"{shop}/")
        page.evaluate(
            "address => { const f = document.createElement('iframe'); f.src = address; f.width = 600;"
            " f.height = 980; document.body.append(f) }",
            f"{app_url}/f/{texting.organization.slug}/embed/",
        )
        return page.frame_locator("iframe")

    frame = embed()
    fill_in(frame)
    clock.travel(10)
    frame.get_by_role("button", name="Request service").click()
    expect(frame.get_by_role("heading", name="We received your request")).to_be_visible()
    assert Submission.objects.count() == 1

    form.embed_origins = "https://www.example.com"
    form.save()
    expect(embed().get_by_label("Your name")).to_have_count(0)
