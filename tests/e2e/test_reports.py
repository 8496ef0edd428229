"""The charts of the reports in a browser: hover, both themes, saving as PNG, and the tables without JavaScript."""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dispatch.core import clock
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.support.tenants import tenant
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

COLORS = """canvas => {
    const pen = canvas.getContext("2d"), found = new Set();
    const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
    for (let n = 0; n < pixels.length; n += 4) {
        if (pixels[n + 3] === 255) found.add(`${pixels[n]},${pixels[n + 1]},${pixels[n + 2]}`);
    }
    return [...found];
}"""


def test_charts_are_drawn_follow_the_theme_and_are_saved_as_png(app_url, sign_in):
    ours = tenant("Alphaville")
    now = clock.now()
    Job.objects.filter(pk=ours.row(Job).pk).update(
        created_at=now - timedelta(seconds=5), status="assigned", pending_reason="", waiting_for="",
        technician=ours.row(Technician), assigned_at=now,
    )  # fmt: skip
    page = sign_in(ours.dispatcher, scheme="light", path="/reports/")
    jobs = page.locator("figure", has=page.get_by_role("heading", name="Jobs", exact=True))
    canvas = jobs.locator("canvas")
    expect(canvas).to_be_visible()
    assert "29,85,196" in canvas.evaluate(COLORS)  # --calling
    words = canvas.evaluate("""canvas => {
        const chart = Chart.getChart(canvas), last = chart.data.labels.length - 1;
        chart.tooltip.setActiveElements([{ datasetIndex: 0, index: last }], { x: 0, y: 0 });
        chart.update();
        return chart.tooltip.body.flatMap((part) => part.lines);
    }""")
    assert words == ["jobs: 1"]
    times = page.locator("figure", has=page.get_by_role("heading", name="Time to assign", exact=True))
    lines = times.locator("canvas").evaluate(
        "canvas => Chart.getChart(canvas).data.datasets.map((one) => one.borderDash.join())"
    )
    assert len(lines) > 1
    assert len(set(lines)) == len(lines), "lines differ by more than their color"
    with page.expect_download() as saved:
        jobs.get_by_role("button", name="PNG").click()
    content = Path(saved.value.path()).read_bytes()
    assert saved.value.suggested_filename.endswith(".png")
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG")
    assert width > height > 250
    page.emulate_media(color_scheme="dark")
    wait_until(lambda: "138,180,255" in canvas.evaluate(COLORS))


def test_tables_have_the_figures_without_javascript(app_url, chromium, sign_in):
    ours = tenant("Alphaville")
    session = sign_in(ours.dispatcher, path="/reports/")
    context = chromium.new_context(java_script_enabled=False, viewport={"width": 390, "height": 900})
    context.add_cookies(session.context.cookies())
    page = context.new_page()
    page.goto(f"{app_url}/reports/")
    expect(page.get_by_role("table").first).to_be_visible()
    expect(page.locator("canvas").first).to_be_hidden()
    context.close()
