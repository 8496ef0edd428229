"""Every page of the demo company, at every width and in both schemes: nothing is cut, and axe finds nothing.

The pages are found by following links. Each kind of page is opened once per scheme, and resized to each screen.
The screenshots are for looking at: `test-results/screens/<page>/<width>-<scheme>.jpg`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import Resolver404, resolve
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from accounts.models import Organization, User
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, Offer
from tests.e2e.test_board import WCAG

pytestmark = [pytest.mark.browser, pytest.mark.soak, pytest.mark.django_db(transaction=True)]

FOLDER = Path("test-results/screens")
# Name, width and height in CSS pixels: a window of 1440 by 900 px at 200 % zoom has half of both.
SCREENS = {"390": (390, 844), "768": (768, 1024), "1440": (1440, 900), "2560": (2560, 1440), "zoomed": (720, 450)}
SCHEMES = ("light", "dark")
# The rules that axe checks on a screen. The dark scheme has other colors, and otherwise the same page. Contrast
# takes most of the time, and hardly depends on the width.
BRIEF = {"resultTypes": ["violations"]}
EVERYTHING = {**WCAG, **BRIEF}
CONTRAST = {"runOnly": ["color-contrast"], **BRIEF}
LAYOUT = {**EVERYTHING, "rules": {"color-contrast": {"enabled": False}}}
CHECKED = {
    ("390", "light"): EVERYTHING, ("768", "light"): LAYOUT, ("1440", "light"): EVERYTHING,
    ("390", "dark"): CONTRAST, ("1440", "dark"): CONTRAST,
}  # fmt: skip
# Pages to which few or no links lead.
ENTRIES = (
    "/board/", "/board/?map=1", "/board/?text=nobody-is-called-that", "/board/timeline/", "/board/new/", "/leads/",
    "/leads/phone/?q=602-555-0134", "/outbox/?state=all", "/outbox/messages/", "/schedules/?view=all", "/reports/",
    "/notifications/", "/account/second-factor/", "/account/sessions/", "/phones/", "/offline/", "/nowhere/",
    "/admin/", "/admin/login/", "/f/desert-air/", "/f/desert-air/embed/", "/s/wrong/", "/join/wrong/",
)  # fmt: skip
# Links that are no pages, or that act when they are followed.
NO_PAGES = re.compile(r"logout|sign-out|/csv/|export|\.csv|\.ics|\.json|\.yaml|/rq/|/api/|\.webmanifest|^tel:")
# Parameters that choose another view of a page.
VIEWS = ("view", "kind", "map", "days", "state", "layout")
MAX_PAGES = 400
# A sheet of the board takes at most 92 % of the window.
WHOLE_HEIGHT = """
Math.max(...[document.documentElement, ...document.querySelectorAll('.sheet')].map(one => one.scrollHeight * 1.1))
"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_page_fits_every_screen_and_is_accessible(company, app_url, sign_in, scheme):
    page = sign_in(User.objects.get(email="admin@demo.example"), scheme=scheme, path="/leads/")
    problems, opened = [], 0
    for title, path, status in walk_pages(page, app_url, [*ENTRIES, *signed_pages(company)]):
        opened += 1
        if status >= 500:
            problems.append(f"{title} {path}: {status}")
        (FOLDER / title).mkdir(parents=True, exist_ok=True)
        for name, (width, height) in SCREENS.items():
            page.set_viewport_size({"width": width, "height": height})
            found = problems_of(page, width)
            page.screenshot(path=FOLDER / title / f"{name}-{scheme}.jpg", type="jpeg", quality=70)
            if rules := CHECKED.get((name, scheme)):
                found += [rule_of(one) for one in violations_of(page, width, height, rules)]
            problems += [f"{title} {path} {name} {scheme}: {problem}" for problem in found]
    assert opened > 180, "links lead to most pages"
    assert not problems, "\n".join(problems)


def walk_pages(page: Page, app_url: str, entries: list[str]) -> Iterator[tuple[str, str, int]]:
    """Follow all links from the entries, and open each kind of page once.

    Yield the name of its folder, its path and its status while it is open. The caller may resize it.
    """
    queue, seen = list(entries), set[str]()
    while queue and len(seen) < MAX_PAGES:
        path = queue.pop(0)
        title = title_of(path)
        if title in seen:
            continue
        seen.add(title)
        answer = page.goto(app_url + path)
        assert answer is not None
        if "html" not in answer.headers.get("content-type", "") or "<html" not in answer.text():
            continue  # a file, or a part of a page
        links = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        for link in (urljoin(app_url + path, href) for href in links):
            local = link.removeprefix(app_url).split("#")[0]
            if link.startswith(f"{app_url}/") and not NO_PAGES.search(local) and title_of(local) not in seen:
                queue.append(local)
        yield title, path, answer.status


def title_of(path: str) -> str:
    """Name the kind of a page: its view, the words in its address, and the parameters that choose its view."""
    parts = urlsplit(path)
    try:
        match = resolve(parts.path)
    except Resolver404:
        return "missing"
    words = [value for value in map(str, match.kwargs.values()) if not value.isdigit() and len(value) < 30]
    chosen = [one for one in parts.query.split("&") if one.split("=")[0] in VIEWS and not one.endswith("=")]
    chosen += ["panel"] if "job=" in parts.query else []
    shown = chosen if parts.path.startswith(("/board/", "/outbox/", "/schedules/", "/notifications/")) else []
    named = " ".join([match.view_name or parts.path, *words, *sorted(shown)[:1]])
    return re.sub(r"[^a-z0-9]+", "-", named.lower())


def signed_pages(company: Organization) -> list[str]:
    """Return the pages of customers and technicians: a request in each state, an offer, a technician's page."""
    jobs = Job.objects.of(company).exclude(submission=None).order_by("-pk")
    links = [signed_links.status_url(job.submission) for job in jobs.filter(status="assigned")[:1]]
    links += [signed_links.offer_url(offer) for offer in Offer.objects.of(company).order_by("-pk")[:1]]
    links += [signed_links.technician_url(job.technician) for job in jobs.filter(status="assigned")[:1]]
    panels = [f"/board/?job={job.pk}" for job in jobs.filter(status="pending")[:1]]
    return [*(urlsplit(link).path for link in links), *panels]


def problems_of(page: Page, width: int) -> list[str]:
    """Return whether the page is too wide, after its charts had time to follow the new width."""
    try:
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width, timeout=5000)
    except PlaywrightTimeoutError:
        return [f"{page.evaluate('document.documentElement.scrollWidth')} px wide"]
    return []


def violations_of(page: Page, width: int, height: int, rules: dict) -> list[dict]:
    """Run axe in a window as high as the page, so that no bar at its lower edge covers a part of a control.

    Pins of the map may overlap: their places are essential, which WCAG 2.5.8 allows.
    """
    whole = min(8000, max(height, round(page.evaluate(WHOLE_HEIGHT))))
    page.set_viewport_size({"width": width, "height": whole})
    found: list[dict] = Axe().run(page, options=rules).response["violations"]
    page.set_viewport_size({"width": width, "height": height})
    pins = "leaflet-marker-icon"
    return [one for one in found if one["id"] != "target-size" or pins not in one["nodes"][0]["html"]]


def rule_of(violation: dict) -> str:
    return f"{violation['id']}: {violation['nodes'][0]['html'][:120]}"
