"""Tables and charts on a tablet, which is also a laptop at 200 % zoom: no column is cut, and no row grows tall."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from accounts.models import User
from tests.e2e.test_attention import shot

pytestmark = [pytest.mark.browser, pytest.mark.soak, pytest.mark.django_db(transaction=True)]

# A row has at most four lines of text.
TALLEST = 92
# The scrolling parts that are wider than they show, and the tallest row.
WIDE = """
() => [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1)
  .map(one => `${one.scrollWidth} of ${one.clientWidth} px`)
"""
TALL = "() => Math.max(0, ...[...document.querySelectorAll('.table tbody tr')].map(row => row.offsetHeight))"
CUT = """
() => [...document.querySelectorAll('.technician .name b')].filter(b => b.scrollHeight > b.clientHeight + 1)
  .map(b => b.title)
"""
LABELS = """
() => Object.values(Chart.instances).find(chart => chart.options.indexAxis === 'y').scales.y.ticks
  .map(tick => [tick.label].flat().join(' '))
"""
PAGES = (
    "/leads/", "/schedules/", "/schedules/?view=all", "/schedules/?view=calendar", "/schedules/?view=runs",
    "/reports/campaigns/", "/reports/customers/", "/outbox/", "/outbox/messages/",
)  # fmt: skip


def sized(page: Page, width: int, path: str, app_url: str) -> Page:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(app_url + path)
    return page


def test_tables_show_all_their_columns_on_a_tablet(company, app_url, sign_in):
    page = sign_in(User.objects.get(email="admin@demo.example"), path="/offline/")
    problems = []
    for path in PAGES:
        for width in (720, 768, 1024):
            sized(page, width, path, app_url)
            problems += [f"{path} at {width}: {part}" for part in page.evaluate(WIDE)]
            tallest = page.evaluate(TALL)
            problems += [f"{path} at {width}: a row of {tallest} px"] if tallest > TALLEST else []
            shot(page, f"tablet-{path.strip('/').replace('/', '-').replace('?view=', '-')}-{width}")
    assert not problems, "\n".join(problems)


def test_timeline_shows_whole_names_where_there_is_room(company, app_url, sign_in):
    page = sign_in(User.objects.get(email="admin@demo.example"), path="/offline/")
    for width in (2560, 1440, 390):
        sized(page, width, "/board/timeline/", app_url)
        expect(page.locator(".technician").first).to_be_visible()
        shot(page, f"timeline-names-{width}")
        assert len(page.evaluate(CUT)) <= 1, "only the longest name is cut, and shown on hover"
        sized(page, width, "/board/timeline/?days=7", app_url)
        shot(page, f"timeline-week-{width}")


def test_chart_names_are_told_apart_on_a_phone_and_follow_the_width(company, app_url, sign_in):
    page = sign_in(User.objects.get(email="admin@demo.example"), path="/offline/")
    for path in ("numbers", "technicians", "customers", "campaigns"):
        sized(page, 390, f"/reports/{path}/", app_url)
        narrow = page.evaluate(LABELS)
        assert len(set(narrow)) == len(narrow), narrow
        shot(page, f"chart-{path}-390")
        page.set_viewport_size({"width": 1440, "height": 900})
        expect(page.locator("canvas").first).to_be_visible()
        page.wait_for_function(f"() => !({LABELS})().some(label => label.endsWith('…'))")
        shot(page, f"chart-{path}-1440")
