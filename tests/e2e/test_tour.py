"""The tour of the demo's board points at five things, works by keyboard, and stays dismissed in every browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from accounts.models import User
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def newcomer(floor) -> User:
    user = make.dispatcher(floor.organization)
    User.objects.filter(pk=user.pk).update(email="dispatcher@demo.example")
    return User.objects.get(pk=user.pk)


def test_tour_shows_five_things_by_keyboard_and_is_over_for_good(newcomer, sign_in):
    page = sign_in(newcomer, path="/board/")
    tour, titles = page.locator("#tour"), []
    expect(tour).to_be_visible()
    page.locator("#tour [data-next]").focus()
    for n in range(1, 6):
        expect(tour.locator("[data-at]")).to_have_text(str(n))
        expect(page.locator(".toured")).to_have_count(1)
        titles.append(tour.locator("h2").inner_text())
        page.keyboard.press("Enter")
    assert len(set(titles)) == 5
    expect(tour).to_be_hidden()
    expect(page.locator(".toured")).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()
    elsewhere(sign_in, newcomer)


def elsewhere(sign_in, user: User) -> None:
    """Nothing is left in another browser, whose storage is empty."""
    wait_until(lambda: User.objects.get(pk=user.pk).tour_dismissed_at is not None)
    page = sign_in(user, path="/board/")
    expect(page.locator(".attention-list")).to_be_visible()
    expect(page.locator("#tour")).to_have_count(0)


def test_escape_dismisses_the_tour_for_good(newcomer, sign_in):
    page = sign_in(newcomer, path="/board/")
    page.locator("#tour [data-next]").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#tour")).to_be_hidden()
    elsewhere(sign_in, newcomer)


def test_other_users_have_no_tour(floor, sign_in):
    page = sign_in(make.dispatcher(floor.organization), path="/board/")
    expect(page.locator(".attention-list")).to_be_visible()
    expect(page.locator("#tour")).to_have_count(0)
