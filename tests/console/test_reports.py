"""The statistics of the reports, checked against manual counts on days of the organization's time zone."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta

import pytest

from dispatch.console import admin_charts
from dispatch.console.reports.periods import read_period
from dispatch.console.reports.statistics import build_report
from dispatch.core import events
from dispatch.core.models import Event
from dispatch.jobs.models import Job, Offer
from tests.console.streams import read_stream
from tests.console.test_board import Desk
from tests.support import factories as make

pytestmark = pytest.mark.django_db
DAY = date(2026, 3, 10)


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


def received(
    desk: Desk, hour_utc: int, *, day: date = DAY, after_s: float | None = None, offers: str = "", **fields
):
    """Create a job received at that hour and assigned `after_s` later, with offers: a, d, t or r."""
    at = datetime(day.year, day.month, day.day, hour_utc, tzinfo=UTC)
    assigned = at + timedelta(seconds=after_s) if after_s is not None else None
    job = desk.job("completed" if assigned else "pending", **fields)
    Job.objects.filter(pk=job.pk).update(created_at=at, assigned_at=assigned)
    events.append(desk.organization.pk, "job.created", job.pk)
    statuses = {"a": "accepted", "d": "declined", "t": "timed_out", "r": "rescinded"}
    for attempt, one in enumerate(offers, 1):
        Offer.objects.create(
            organization=desk.organization, job=job, technician=desk.technician(), attempt=attempt,
            status=statuses[one], expires_at=at,
        )  # fmt: skip
    return job


def test_figures_by_day_service_and_all(desk):
    received(desk, 18, after_s=60, offers="a")
    received(desk, 19, after_s=120, offers="dta")
    received(desk, 20, after_s=600, offers="ra")
    lost = received(desk, 21, offers="td")
    events.append(desk.organization.pk, "job.pending", lost.pk, reason="exhausted")
    other = make.service_type(desk.organization, "gas", name="Gas")
    received(desk, 22, service_type=other)
    found = build_report(desk.organization, DAY, DAY)
    assert (found.total.jobs, found.total.assigned) == (5, 3)
    assert found.total.median_s == 120
    assert found.total.p90_s == pytest.approx(120 + 0.8 * 480)
    assert found.total.acceptance == pytest.approx(3 / 7)  # 3 of a, dta, a, td; the r does not count
    assert found.total.tries == pytest.approx(6 / 3)
    assert found.total.exhaustion == pytest.approx(1 / 5)
    assert [(one.name, one.jobs) for one in found.services] == [("Water heater", 4), ("Gas", 1)]
    assert build_report(desk.organization, DAY, DAY, other).total.jobs == 1


def test_jobs_whose_events_are_deleted_do_not_count_as_accepted(desk):
    for exhausted in (True, False):
        job = received(desk, 18)
        if exhausted:
            events.append(desk.organization.pk, "job.pending", job.pk, reason="exhausted")
    forgotten = received(desk, 19)
    Event.objects.filter(subject_type="job", subject_id=forgotten.pk).delete()
    assert build_report(desk.organization, DAY, DAY).total.exhaustion == pytest.approx(1 / 2)
    assert "share of 2 jobs with history" in desk.see(f"/reports/?from={DAY}&to={DAY}")
    Event.objects.filter(subject_type="job").delete()
    assert build_report(desk.organization, DAY, DAY).total.exhaustion is None
    page = desk.see(f"/reports/?from={DAY}&to={DAY}")
    assert "unknown, the history of these jobs was deleted" in page
    assert "<dd>0%</dd>" not in page.split("Nobody accepted")[1].split("</div>")[0]


@pytest.mark.parametrize(("after_s", "waited_s"), [(4 * 3600, 3600), (1800, 1800)])
def test_job_with_a_window_waits_from_when_technicians_are_called_for_it(desk, after_s, waited_s):
    job = received(desk, 12, after_s=after_s)
    window_start = datetime(DAY.year, DAY.month, DAY.day, 16, tzinfo=UTC)
    Job.objects.filter(pk=job.pk).update(window_start=window_start, policy={"window_lead_s": 3600})
    assert build_report(desk.organization, DAY, DAY).total.median_s == waited_s


def test_a_day_is_that_of_the_organization(desk):
    received(desk, 3)  # 20:00 of the previous day in Phoenix
    received(desk, 8)
    found = build_report(desk.organization, DAY - timedelta(days=1), DAY)
    assert [one.jobs for one in found.days] == [1, 1]
    assert build_report(desk.organization, DAY, DAY).total.jobs == 1


def test_the_page_has_charts_with_tables_and_the_csv_the_same_figures(desk):
    received(desk, 18, after_s=60, offers="a")
    address = f"?from={DAY}&to={DAY + timedelta(days=2)}"
    page = desk.see(f"/reports/{address}")
    assert page.count("<canvas") == 4  # nobody accepted: no data
    assert "1 min" in page
    answer = desk.client.get(f"/reports/csv/{address}")
    assert f"{DAY}-{DAY + timedelta(days=2)}.csv" in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(read_stream(answer).removeprefix("\ufeff"))))
    assert [row["day (America/Phoenix)"] for row in rows] == ["2026-03-10", "2026-03-11", "2026-03-12"]
    assert rows[0]["jobs"] == "1"
    assert float(rows[0]["median_time_to_assign_s"]) == 60
    assert rows[1]["acceptance_rate"] == ""


def test_empty_report_says_so_and_invalid_query_falls_back(desk):
    assert "No jobs in this period" in desk.see("/reports/?days=abc&from=x&service=nothing")
    assert read_period(desk.organization, {"days": "9999"}).count == 366
    assert read_period(desk.organization, {"from": "2026-03-02", "to": "2026-03-01"}).count == 14


@pytest.mark.parametrize("day", ["0001-01-01", "9999-12-31", "1999-12-31"])
def test_days_outside_of_the_calendar_are_not_an_error(desk, day):
    assert read_period(desk.organization, {"from": day, "to": day}).count == 14
    desk.see(f"/reports/?from={day}&to={day}")


def test_names_are_escaped_as_spreadsheet_formulas(desk):
    evil = make.service_type(desk.organization, "evil", name="=HYPERLINK(1)")
    received(desk, 18, service_type=evil)
    told = read_stream(desk.client.get(f"/reports/csv/?by=service&from={DAY}&to={DAY}"))
    assert "'=HYPERLINK(1)" in told


def test_nothing_of_another_organization_is_counted(desk, browser):
    received(desk, 18, after_s=60)
    other = Desk(browser)
    assert build_report(other.organization, DAY, DAY).total.jobs == 0


def test_scales_begin_at_zero_and_end_at_a_round_number():
    chart = admin_charts.line_chart("t", ["a", "b", "c"], [("x", "good", [95, None, 10])], lambda v: f"{v:g}")
    for drawing in chart.drawings:
        assert [tick.words for tick in drawing.ticks] == ["0", "50", "100"]
        assert drawing.lines[0].path.count("M") == 2  # the gap is not bridged
    times = admin_charts.line_chart("t", ["a"], [("x", "good", [400])], lambda v: f"{v:g}", times=True)
    assert [tick.words for tick in times.drawings[0].ticks] == ["0", "120", "240", "360", "480"]
    assert admin_charts.bar_chart("t", [], [], str).is_empty
