"""Measure how smoothly a job is dragged on the technicians' timeline, in Chromium.

A trace of the DevTools protocol gives the frames that were drawn while the mouse moves, and the time of the page's
main thread.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from django.conf import settings
from django.test import Client
from playwright.sync_api import CDPSession, Page, sync_playwright

from accounts.models import Organization
from dispatch.core import clock
from dispatch.jobs.models import Job, Submission
from dispatch.technicians.models import Shift, Technician
from tests.benchmarks import Result
from tests.benchmarks.jobs_site import running
from tests.benchmarks.measuring import percentile
from tests.support import factories as make
from tests.support.chromium import ARGUMENTS, CHROMIUM

TECHNICIANS, PLANNED_EACH, UNASSIGNED = 40, 5, 30
DRAG_S, DRAGS = 4.0, 3
FRAME_MS = 1000 / 60
CATEGORIES = [
    "devtools.timeline",
    "disabled-by-default-devtools.timeline",
    "disabled-by-default-devtools.timeline.frame",
]


class Drag(NamedTuple):
    """One drag: the milliseconds between drawn frames, and those of each task of the page's main thread."""

    gaps: list[float]
    tasks: list[float]


def run() -> Iterator[Result]:
    if CHROMIUM is None:
        raise RuntimeError("The suite `timeline` needs the package `chromium`.")
    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # playwright keeps an event loop in this thread
    organization = _fill_day()
    cookie = _sign_in(organization)
    with running(dispatcher=False) as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        with closing(browser):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": site.base_url}])
            page = context.new_page()
            tomorrow = clock.now() + timedelta(days=1)
            page.goto(f"{site.base_url}/board/timeline/?day={tomorrow:%Y-%m-%d}")
            page.locator("html[data-live=live]").wait_for()
            drags = [_drag(page, context.new_cdp_session(page)) for _ in range(DRAGS)]
    gaps = sorted(gap for drag in drags for gap in drag.gaps)
    # The picture changes with every move, so that a longer gap is a frame that was missed.
    missed = sum(max(0, round(gap / FRAME_MS) - 1) for gap in gaps)
    tasks = sorted(took for drag in drags for took in drag.tasks)
    where = f"a drag over {TECHNICIANS} technicians, {TECHNICIANS * PLANNED_EACH} jobs"
    yield Result(f"{where}: time between frames, median", statistics.median(gaps), "ms", f"<= {FRAME_MS + 1:.1f}")
    yield Result(f"{where}: time between frames, p95", percentile(gaps, 0.95), "ms")
    yield Result(
        f"{where}: frames missed of {len(gaps) + missed}", 100 * missed / (len(gaps) + missed), "%", "<= 5"
    )
    yield Result(f"{where}: main thread per frame", sum(tasks) / len(gaps), "ms")
    yield Result(f"{where}: longest task", tasks[-1], "ms")


def _fill_day() -> Organization:
    """Create technicians with shifts, a day of planned jobs for each, and jobs in the tray."""
    organization = make.organization("Full Day")
    service = make.service_type(organization, "heater", name="Water heater")
    technicians = [make.technician(organization, f"Unit {nth:02}") for nth in range(TECHNICIANS)]
    Shift.objects.bulk_create(
        Shift(organization=organization, technician=one, weekday=day, starts="06:00", ends="22:00")
        for one in technicians
        for day in range(7)
    )
    begin = (clock.now() + timedelta(days=1)).replace(hour=15, minute=0)  # morning in Phoenix
    for technician in technicians:
        for nth in range(PLANNED_EACH):
            start = begin + timedelta(hours=2 * nth)
            _job(organization, service, technician, window_start=start, window_end=start + timedelta(hours=1))
    for _ in range(UNASSIGNED):
        _job(organization, service, None, window_start=begin, window_end=begin + timedelta(hours=2))
    return organization


def _job(organization: Organization, service: Any, technician: Technician | None, **fields: Any) -> None:
    form: dict[str, Any] = {
        "organization": organization, "customer_name": "Dana Whitfield", "customer_phone": make.phone(),
        "service_type": service, "address": make.PHOENIX.address,
    }  # fmt: skip
    state: dict[str, Any] = (
        {"status": "assigned", "technician": technician, "assigned_at": clock.now()}
        if technician
        else {
            "status": "pending",
            "pending_reason": "exhausted",
            "waiting_for": "person",
            "waiting_since": clock.now(),
        }
    )
    submission = Submission.objects.create(form={}, status="processed", **form)
    Job.objects.create(
        submission=submission, lat=make.PHOENIX.lat, lng=make.PHOENIX.lng, **form, **state, **fields
    )


def _sign_in(organization: Organization) -> str:
    client = Client()
    client.force_login(make.dispatcher(organization), backend="django.contrib.auth.backends.ModelBackend")
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def _drag(page: Page, session: CDPSession) -> Drag:
    """Drag a job from the tray over the rows for some seconds, and cancel. Return what the trace says."""
    handle = page.locator(".tray [data-drag]").first.bounding_box()
    rows = page.locator(".rows").bounding_box()
    assert handle is not None
    assert rows is not None
    page.mouse.move(handle["x"] + 20, handle["y"] + 20)
    page.mouse.down()
    page.mouse.move(handle["x"] + 60, handle["y"] + 40, steps=4)
    page.locator(".dragged").wait_for()
    events: list[dict[str, Any]] = []
    session.on("Tracing.dataCollected", lambda part: events.extend(part["value"]))
    ended: list[bool] = []
    session.on("Tracing.tracingComplete", lambda _: ended.append(True))
    session.send("Tracing.start", {"traceConfig": {"includedCategories": CATEGORIES}})
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < DRAG_S:
        x = rows["x"] + 200 + (rows["width"] - 260) * _sweep(passed / 1.1)
        y = rows["y"] + 50 + (min(rows["height"], 820) - 80) * _sweep(passed / 1.7)
        page.mouse.move(x, y)
    session.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(20)
    page.keyboard.press("Escape")
    page.mouse.up()
    session.detach()
    return read_trace(events)


def _sweep(phase: float) -> float:
    """Return a position between 0 and 1 that goes back and forth."""
    part = phase % 2
    return part if part <= 1 else 2 - part


def read_trace(events: list[dict[str, Any]]) -> Drag:
    """Return the gaps between drawn frames, and the lengths of the tasks of the thread that handles moves."""
    drawn = sorted(event["ts"] for event in events if event["name"] == "DrawFrame")
    gaps = [(later - earlier) / 1000 for earlier, later in pairwise(drawn)]
    moves = (event for event in events if event["name"] == "EventDispatch" and _type_of(event) == "pointermove")
    main = next((event["pid"], event["tid"]) for event in moves)
    tasks = [
        event["dur"] / 1000
        for event in events
        if event["name"] == "RunTask" and "dur" in event and (event["pid"], event["tid"]) == main
    ]
    return Drag(gaps, tasks)


def _type_of(event: dict[str, Any]) -> str:
    found: str = event.get("args", {}).get("data", {}).get("type", "")
    return found
