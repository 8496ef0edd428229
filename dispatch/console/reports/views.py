"""The reports page and its CSV."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dispatch.console import views_base
from dispatch.console.reports.charts import WIDE, WIDTH, bar_chart, line_chart
from dispatch.console.reports.spend import build_spend
from dispatch.console.reports.statistics import SPANS, Figures, Report, build_report, span_of
from dispatch.console.templatetags.console import percent, seconds
from dispatch.console.views_base import console_view
from dispatch.core import csv_files
from dispatch.jobs.models import ServiceType

COLUMNS = (
    "jobs", "assigned", "median_time_to_assign_s", "p90_time_to_assign_s", "acceptance_rate",
    "tries_per_assignment", "exhaustion_rate",
)  # fmt: skip


@require_GET
@console_view
def reports(request: HttpRequest) -> HttpResponse:
    """Render the statistics by day and by service, with charts."""
    report, service, days = _requested_report(request)
    names = [figures.name for figures in report.days]
    times = [
        ("median", "calling", [figures.median_s for figures in report.days]),
        ("90th pct.", "late", [figures.p90_s for figures in report.days]),
    ]
    charts = [
        *(  # wide if there is space
            line_chart("Time to assign", names, times, seconds, times=True, width=width) for width in (WIDE, WIDTH)
        ),
        bar_chart("Jobs", names, [figures.jobs for figures in report.days], lambda value: f"{value:g}"),
        line_chart(
            "Acceptance rate",
            names,
            [("accepted", "good", [figures.acceptance for figures in report.days])],
            percent,
            top=1.0,
        ),
        line_chart(
            "Calls per assigned job",
            names,
            [("calls", "calling", [figures.tries for figures in report.days])],
            lambda value: f"{value:.3g}",
        ),
        line_chart(
            "Nobody accepted",
            names,
            [("nobody", "attention", [figures.exhaustion for figures in report.days])],
            percent,
            top=1.0,
        ),
    ]
    context = {
        "current": "reports",
        "report": report,
        "charts": charts,
        "spans": SPANS,
        "days": days,
        "service": service,
        "services": ServiceType.objects.of(request.organization),
        "spend": build_spend(request.organization, report.first, report.last),
        "most_jobs": max((figures.jobs for figures in report.services), default=0),
    }
    return views_base.render_page(request, "console/reports/reports.html", context)


@require_GET
@console_view
def as_csv(request: HttpRequest) -> HttpResponse:
    """Return the table by day, by service (`?by=service`) or of prices (`?by=spend`), as CSV.

    Times in seconds, rates from 0 to 1.
    """
    report, _, _ = _requested_report(request)
    if request.GET.get("by") == "spend":
        return _spend_csv(request, report)
    by = "service" if request.GET.get("by") == "service" else "day"
    name = f"dispatch-{request.organization.slug}-by-{by}-{report.first}-{report.last}.csv"
    rows = report.services if by == "service" else report.days
    return csv_files.csv_response(
        name,
        [by if by == "service" else f"day ({report.zone})", *COLUMNS],
        (
            [csv_files.escape_formula(figures.name) if by == "service" else f"{figures.day}", *_row(figures)]
            for figures in rows
        ),
    )


def _spend_csv(request: HttpRequest, report: Report) -> HttpResponse:
    spend = build_spend(request.organization, report.first, report.last)
    return csv_files.csv_response(
        f"dispatch-{request.organization.slug}-spend-{report.first}-{report.last}.csv",
        [f"day ({report.zone})", "currency", "calls", "texts", "total"],
        ([f"{cost.day}", cost.currency, cost.calls, cost.texts, cost.total] for cost in spend.days),
    )


def _requested_report(request: HttpRequest) -> tuple[Report, ServiceType | None, int]:
    first, last, days = span_of(request.organization, request.GET)
    code = request.GET.get("service", "")[:64]
    service = ServiceType.objects.of(request.organization).filter(code=code).first() if code else None
    return build_report(request.organization, first, last, service), service, days


def _row(figures: Figures) -> list[Any]:
    rounded = [
        None if value is None else round(value, 4)
        for value in (figures.median_s, figures.p90_s, figures.acceptance, figures.tries, figures.exhaustion)
    ]
    return [figures.jobs, figures.assigned, *rounded]
