"""The columns of the board, page by page: each page continues after the last card of the one before."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from dispatch.console.board.cards import MAX_REFETCHED, PAGE
from dispatch.core import clock
from dispatch.jobs.models import Job
from tests.console.test_board import HTMX, Desk

pytestmark = pytest.mark.django_db

# Two states of the jobs of each column; jobs in the first one come first.
STATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "new": ({"status": "dispatching", "priority": 1}, {"status": "dispatching", "priority": 3}),
    "assigned": ({"status": "assigned"}, {"status": "assigned"}),
    "done": ({"status": "completed"}, {"status": "cancelled"}),
}
MOMENTS = {"assigned": "assigned_at", "done": "ended_at"}


@pytest.fixture
def desk(browser: Any) -> Desk:
    return Desk(browser)


def fill_column(desk: Desk, name: str, count: int) -> list[int]:
    """Create jobs of the column, many of the same rank. Return their ids in the column's order."""
    first, second = STATES[name]
    moment = clock.now() - timedelta(hours=1)
    earlier = moment - timedelta(microseconds=1)
    technician = {"technician": desk.technician()} if name == "assigned" else {}
    ids: list[list[int]] = [[], []]
    for number in range(count):
        rank = int(number % 3 == 0)
        fields = {**(second if rank else first), **technician}
        if name in MOMENTS:
            fields[MOMENTS[name]] = earlier if rank else moment
        ids[rank].insert(0, desk.job(**fields).pk)
    return ids[0] + ids[1]


def shown(html: str) -> list[int]:
    return [int(job) for job in re.findall(r'<li data-id="(\d+)"', html)]


def next_page(desk: Desk, html: str) -> str:
    """Follow the link at the end of the cards, as a browser without JavaScript does."""
    (address,) = re.findall(r'<li class="more"><a class="button" href="([^"]+)"', html)
    return desk.see(address.replace("&amp;", "&"), headers=HTMX)


@pytest.mark.parametrize("name", STATES)
def test_each_page_continues_after_the_last_card_of_the_one_before(desk, name):
    jobs = fill_column(desk, name, PAGE * 2 + 5)
    page = desk.list_of(desk.see("/board/?area=AZ"), name)
    assert shown(page) == jobs[:PAGE]
    assert f"({PAGE + 5} more)" in page
    Job.objects.filter(pk__in=jobs[:10]).update(status="pending", pending_reason="exhausted", ended_at=None)
    page = next_page(desk, page)
    assert shown(page) == jobs[PAGE : PAGE * 2], "jobs that left the column are not skipped over"
    assert "(5 more)" in page
    page = next_page(desk, page)
    assert shown(page) == jobs[PAGE * 2 :]
    assert '<li class="more" hidden>' in page


def test_a_refetch_returns_as_many_cards_as_the_page_shows(desk):
    jobs = fill_column(desk, "new", PAGE + 5)
    for asked, expected in (("", PAGE), ("&new=0", PAGE), (f"&new={PAGE + 2}", PAGE + 2), ("&new=9999", PAGE + 5)):
        answer = desk.client.get(f"/board/changes/?all=1{asked}", headers=HTMX).json()
        assert [card["id"] for card in answer["cards"]] == jobs[:expected]
        assert answer["counts"]["new"] == PAGE + 5
    assert MAX_REFETCHED < 9999


@pytest.mark.parametrize("name", [*STATES, "calling"])
@pytest.mark.parametrize("place", ["x", "3", "9" * 14, "9" * 15, "9" * 31, "9" * 32, "-" + "9" * 14, "٣" * 15])
def test_a_place_that_no_card_can_have_is_refused(desk, name, place):
    desk.job(**STATES.get(name, STATES["new"])[0])
    answer = desk.client.get(f"/board/columns/{name}/", {"after": place}, headers=HTMX)
    has_form = place.isascii() and len(place) == (31 if name in MOMENTS else 15) and place.isdigit()
    assert answer.status_code == (200 if has_form else 404)
    assert desk.client.get("/board/columns/pending/", headers=HTMX).status_code == 404
