"""The reports page and its CSV."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dispatch.console import web
from dispatch.console.reports.charts import WIDE, WIDTH, bar_chart, line_chart
from dispatch.console.reports.figures import SPANS, Figures, Report, report, span_of
from dispatch.console.templatetags.console import percent, seconds
from dispatch.console.web import console_view
from dispatch.core import spreadsheets
from dispatch.jobs.models import ServiceType

COLUMNS = (
    "jobs", "assigned", "median_time_to_assign_s", "p90_time_to_assign_s", "acceptance_rate",
    "tries_per_assignment", "exhaustion_rate",
)  # fmt: skip


@require_GET
@console_view
def reports(request: HttpRequest) -> HttpResponse:
    """Figures by day and by service, with their charts."""
    found, service, days = _asked(request)
    names = [one.name for one in found.days]
    times = [
        ("median", "calling", [one.median_s for one in found.days]),
        ("90th pct.", "late", [one.p90_s for one in found.days]),
    ]
    charts = [
        *(  # wide where there is room
            line_chart("Time to assign", names, times, seconds, times=True, width=width) for width in (WIDE, WIDTH)
        ),
        bar_chart("Jobs", names, [one.jobs for one in found.days], lambda value: f"{value:g}"),
        line_chart(
            "Acceptance rate",
            names,
            [("accepted", "good", [one.acceptance for one in found.days])],
            percent,
            top=1.0,
        ),
        line_chart(
            "Tries per assignment",
            names,
            [("tries", "calling", [one.tries for one in found.days])],
            lambda value: f"{value:.3g}",
        ),
        line_chart(
            "Exhaustion rate",
            names,
            [("nobody", "attention", [one.exhaustion for one in found.days])],
            percent,
            top=1.0,
        ),
    ]
    context = {
        "current": "reports",
        "report": found,
        "charts": charts,
        "spans": SPANS,
        "days": days,
        "service": service,
        "services": ServiceType.objects.of(request.organization),
        "most_jobs": max((one.jobs for one in found.services), default=0),
    }
    return web.page(request, "console/reports/reports.html", context)


@require_GET
@console_view
def as_csv(request: HttpRequest) -> HttpResponse:
    """The table by day, or by service (`?by=service`), for a spreadsheet. Times in seconds, rates from 0 to 1."""
    found, _, _ = _asked(request)
    by = "service" if request.GET.get("by") == "service" else "day"
    name = f"dispatch-{request.organization.slug}-by-{by}-{found.first}-{found.last}.csv"
    rows = found.services if by == "service" else found.days
    return spreadsheets.answer(
        name,
        [by if by == "service" else f"day ({found.zone})", *COLUMNS],
        ([spreadsheets.safe(one.name) if by == "service" else f"{one.day}", *_row(one)] for one in rows),
    )


def _asked(request: HttpRequest) -> tuple[Report, ServiceType | None, int]:
    first, last, days = span_of(request.organization, request.GET)
    code = request.GET.get("service", "")[:64]
    service = ServiceType.objects.of(request.organization).filter(code=code).first() if code else None
    return report(request.organization, first, last, service), service, days


def _row(one: Figures) -> list[Any]:
    rounded = [
        None if value is None else round(value, 4)
        for value in (one.median_s, one.p90_s, one.acceptance, one.tries, one.exhaustion)
    ]
    return [one.jobs, one.assigned, *rounded]
