"""A column with more jobs than it shows: what is shown stays current, and "Show more" continues after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from dispatch.core import clock, events
from dispatch.jobs.models import Job, Priority, Submission
from tests.core.threads import Elsewhere
from tests.e2e.test_board import column, live
from tests.e2e.test_panel_requests import first, hold
from tests.harness.jobs import Floor
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser


def make_jobs(floor: Floor, count: int) -> list[int]:
    """Create jobs of the column "New", without an event. Return their ids, the first of the column first."""
    form = {
        "organization": floor.organization,
        "customer_name": "Ida Whitfield",
        "customer_phone": "+16025550123",
        "service_type": floor.service,
        "address": make.PHOENIX.address,
        "priority": Priority.URGENT,
    }
    rows = Submission.objects.bulk_create(Submission(form={}, status="processed", **form) for _ in range(count))
    later = clock.now() + timedelta(hours=5)
    states = {"status": "dispatching", "waiting_for": "start", "next_action_at": later}
    made = Job.objects.bulk_create(
        Job(submission=row, lat=make.PHOENIX.lat, lng=make.PHOENIX.lng, **form, **states) for row in rows
    )
    return sorted((job.pk for job in made), reverse=True)


def cancel(jobs: Sequence[int]) -> None:
    """Cancel these jobs without an event, as while the page is not connected."""
    Job.objects.filter(pk__in=jobs).update(status="cancelled", ended_at=clock.now(), next_action_at=None)


def publish(floor: Floor, jobs: Sequence[int]) -> None:
    """Send a live update about each of these jobs, as another process would."""
    Elsewhere(lambda: [events.append(floor.organization.pk, "job.edited", job) for job in jobs]).finish()


@pytest.fixture
def open_board(floor: Floor, sign_in: Callable[..., Page]) -> Callable[[], Page]:
    return lambda: live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))


def shown(page: Page) -> list[int]:
    rows = column(page, "new").locator("li[data-id]")
    return [int(job) for job in rows.evaluate_all("rows => rows.map((row) => row.dataset.id)")]


def more(page: Page) -> Locator:
    return column(page, "new").get_by_role("link", name="Show more")


def expect_shown(page: Page, jobs: Sequence[int]) -> None:
    """Wait until the column shows these jobs in this order."""

    def compare() -> bool:
        page.wait_for_timeout(20)
        assert shown(page) == list(jobs)
        return True

    wait_until(compare)


def applied(page: Page) -> int:
    """How many times the page has applied changes."""
    return int(page.evaluate("() => Number(document.documentElement.dataset.applied || 0)"))


def refetch(page: Page) -> None:
    """Fetch everything, as after a reconnection, and wait until it is shown."""
    before = applied(page)
    page.evaluate("() => { document.body.dispatchEvent(new CustomEvent('dispatch:refetch', { detail: {} })) }")
    wait_until(lambda: page.wait_for_timeout(20) or applied(page) > before)


def test_rows_shown_beyond_the_first_page_stay_current_after_a_refetch(floor, open_board):
    jobs = make_jobs(floor, 45)
    page = open_board()
    expect(more(page)).to_contain_text("(5 more)")
    more(page).press("Enter")
    expect_shown(page, jobs)
    expect(more(page)).to_have_count(0)
    page.locator("#main").focus()  # nothing moves under the focus
    refetch(page)
    expect_shown(page, jobs)
    cancel(jobs[42:44])
    refetch(page)
    expect_shown(page, jobs[:42] + jobs[44:])
    fresh = make_jobs(floor, 20)
    refetch(page)
    expect_shown(page, (fresh + jobs)[:43])
    expect(more(page)).to_contain_text("(20 more)")


def test_show_more_continues_after_the_last_card_of_a_changing_list(floor, open_board):
    jobs = make_jobs(floor, 60)
    page = open_board()
    expect(more(page)).to_contain_text("(20 more)")
    cancel(jobs[:10])
    publish(floor, jobs[:10])
    expect_shown(page, jobs[10:40])
    fresh = make_jobs(floor, 5)
    publish(floor, fresh)
    expect_shown(page, fresh + jobs[10:40])
    expect(more(page)).to_contain_text("(20 more)")
    cancel(jobs[50:])
    publish(floor, jobs[50:])
    expect(more(page)).to_contain_text("(10 more)")
    more(page).press("Enter")
    expect_shown(page, fresh + jobs[10:50])
    expect(more(page)).to_have_count(0)


def test_show_more_appears_and_goes_with_the_jobs_it_counts(floor, open_board):
    jobs = make_jobs(floor, 30)
    page = open_board()
    expect_shown(page, jobs)
    expect(more(page)).to_have_count(0)
    jobs = make_jobs(floor, 15) + jobs
    refetch(page)
    expect_shown(page, jobs[:40])
    expect(more(page)).to_contain_text("(5 more)")
    cancel(jobs[38:])
    publish(floor, jobs[38:])
    expect_shown(page, jobs[:38])
    expect(more(page)).to_have_count(0)
    Job.objects.filter(pk=jobs[0]).update(priority=Priority.NORMAL)
    publish(floor, jobs[:1])
    expect_shown(page, [*jobs[1:38], jobs[0]])


def test_a_card_appears_although_its_column_has_counted_it_before(floor, open_board):
    """The column is empty but for the count, so it fetches all its cards."""
    (former,) = make_jobs(floor, 1)
    page = open_board()
    expect_shown(page, [former])
    (late,) = make_jobs(floor, 1)
    cancel([former])
    publish(floor, [former])
    expect_shown(page, [late])
    expect(more(page)).to_have_count(0)


def test_what_changes_while_cards_are_loaded_is_fetched_after_them(floor, open_board):
    """Neither the lists of changed filters nor the next cards undo a newer change."""
    jobs = make_jobs(floor, 45)
    page = open_board()
    held = hold(page, re.compile(r"/board/\?text=Phoenix"), "GET")
    page.locator("#text").fill("Phoenix")
    answer_late(page, held, lambda: change(page, floor, jobs[0]))
    page.wait_for_url("**/board/?text=Phoenix")
    expect_shown(page, jobs[1:40])
    held = hold(page, re.compile("/board/columns/new/"), "GET")
    more(page).press("Enter")
    answer_late(page, held, lambda: change(page, floor, jobs[44]))
    page.locator("#main").focus()  # nothing moves under the focus
    expect_shown(page, jobs[1:44])


def change(page: Page, floor: Floor, job: int) -> None:
    """Cancel a job, and wait until the page has shown that."""
    cancel([job])
    publish(floor, [job])
    expect(column(page, "done").locator(f"li[data-id='{job}']")).to_have_count(1)


def answer_late(page: Page, held: list[Route], meanwhile: Callable[[], None]) -> None:
    """Let the server answer the held request now, and the page receive the answer after something else."""
    route = first(page, held)
    answer = route.fetch()
    meanwhile()
    route.fulfill(response=answer)


def test_cards_that_arrive_after_their_count_are_all_shown(floor, open_board):
    page = open_board()
    jobs = make_jobs(floor, 30)
    publish(floor, jobs[:5])
    expect(more(page)).to_be_visible()
    before = applied(page)
    publish(floor, jobs[5:15])
    wait_until(lambda: page.wait_for_timeout(20) or applied(page) > before)
    publish(floor, jobs[15:])
    expect_shown(page, jobs)
    expect(more(page)).to_have_count(0)


def test_column_that_is_empty_under_the_pointer_is_fetched_once(floor, open_board):
    jobs = make_jobs(floor, 90)
    page = open_board()
    held = hold(page, re.compile(r"[?&]all=1"), "GET")
    cancel(jobs[:40])
    publish(floor, jobs[:40])
    route = first(page, held)
    more(page).hover()
    before = applied(page)
    route.continue_()
    wait_until(lambda: page.wait_for_timeout(20) or applied(page) > before)
    expect(column(page, "new").get_by_role("button", name="40 new")).to_be_visible()
    cancel(jobs[40:41])
    publish(floor, jobs[40:41])
    expect(column(page, "new").get_by_role("button", name="39 new")).to_be_visible()
    assert len(held) == 1, "only what changed is fetched"
    page.mouse.move(0, 0)
    expect_shown(page, jobs[41:80])


def test_column_whose_cards_have_all_left_shows_those_that_follow(floor, open_board):
    jobs = make_jobs(floor, 60)
    page = open_board()
    cancel(jobs[:40])
    publish(floor, jobs[:40])
    expect_shown(page, jobs[40:])
    expect(more(page)).to_have_count(0)
