"""The outbox in a browser: a dispatcher finds what is stuck, sees why, and releases it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.screens import SCREENS
from tests.harness.outbox import World, open_world
from tests.support import factories as make

OpenPage = Callable[..., Page]


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    with open_world() as world:
        yield world


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_blocked_group_is_found_explained_and_unblocked(
    world: World, sign_in: OpenPage, app_url: str, width: int, scheme: str
) -> None:
    erp = world.endpoint("ERP")
    world.receiver.answer("bad", 422, "unknown customer")
    bad, held = world.send(erp, "bad", "held", group="job:7", type="job.assigned")
    world.start()
    world.becomes(bad, "ERROR")
    page = sign_in(make.dispatcher(world.organization, "Dora"), width=width, scheme=scheme)
    page.goto(f"{app_url}/outbox/")
    expect(page.get_by_role("row", name=re.compile("job:7"))).to_contain_text(f"error of message {bad}")
    page.get_by_role("link", name="job:7").click()
    expect(page.get_by_role("main")).to_contain_text(f"blocked by the error of message {bad}")
    page.get_by_role("row", name=re.compile(f"^{bad} ")).get_by_role("link").click()
    expect(page.get_by_role("main")).to_contain_text("unknown customer")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    world.receiver.heal()
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("textbox", name="Note").fill("they know the customer now")
    page.get_by_role("button", name="Retry").click()
    # The page updates itself.
    expect(page.locator("#message .badge").first).to_have_text("Completed")
    expect(page.get_by_role("main")).to_contain_text("they know the customer now")
    world.becomes(held, "COMPLETED")
    expect(page.locator("#outbox-summary")).to_contain_text("0 blocked groups")


def test_a_test_message_is_sent_and_its_answer_seen(world: World, sign_in: OpenPage, app_url: str) -> None:
    world.endpoint("ERP")
    world.start()
    page = sign_in(make.dispatcher(world.organization, "Dora"))
    page.goto(f"{app_url}/outbox/endpoints/")
    page.get_by_role("link", name="ERP").click()
    page.get_by_role("button", name="Send a test message").click()
    expect(page.locator("#message .badge").first).to_have_text("Completed")
    expect(page.get_by_role("main")).to_contain_text("HTTP 200")


def test_all_on_the_page_are_chosen_and_cancelled(world: World, sign_in: OpenPage, app_url: str) -> None:
    ids = world.send(world.endpoint("ERP"), "a", "b", "c")
    page = sign_in(make.dispatcher(world.organization, "Dora"))
    page.goto(f"{app_url}/outbox/messages/?status=open")
    page.get_by_label("All on this page").check()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel 3 messages").click()
    expect(page.get_by_role("status").filter(has_text="3 messages canceled.")).to_be_visible()
    assert set(world.statuses(ids)) == {"CANCELLED"}
